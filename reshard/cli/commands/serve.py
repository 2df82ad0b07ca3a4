"""``reshard serve`` and ``reshard work``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reshard.cli.options import Misuse, Texts, usage
from reshard.errors import MissingPackageError
from reshard.version import how_to_install

if TYPE_CHECKING:
    from collections.abc import Sequence


def serve(
    *,
    host: str | None = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    state: Path | None = None,
    root: Texts = None,
    settings: Annotated[Path | None, typer.Option(envvar="RESHARD_SETTINGS")] = None,
    insecure: bool | None = None,
    forwarded_allow_ips: str | None = None,
    list_settings: bool = False,
    migrate: bool = False,
    make_token: str | None = None,
    scope: Texts = None,
    read: Texts = None,
    write: Texts = None,
    expires: str | None = None,
    s3: bool = False,
) -> None:
    r"""Serve conversions by HTTP: durable jobs, progress, schedules, a page to watch them.

    Accepted conversions survive the end of this process: start it again with the same state and they resume where they
    stopped. On SIGTERM or Ctrl+C it takes no new requests, finishes open ones, and exits with 0. Needs the packages of
    the extra 'server'.

    Options:
        --host ADDRESS: Address to listen on. Default: 127.0.0.1.
        --port N: Port; 0 takes a free one. Default: 8080.
        --state DIR: Folder for the server's records. Default: reshard-state.
        --root NAME=PATH: A folder, or a gs://, s3://, az:// or hf:// URL, that clients may name as NAME/...; may be repeated.
        --settings FILE: Every other setting, as TOML (--list-settings). Flags and RESHARD_... come first.
        --insecure: No token is needed; on a loopback address only.
        --forwarded-allow-ips ADDRESSES: Proxies whose X-Forwarded-For, -Proto and -Host are trusted: addresses and networks between
            commas, or * for every peer. Default: none.
        --list-settings: Print every setting with its variable, default and description; serve nothing.
        --migrate: Migrate the records of an older version to this one and exit. A start does it too, unless the setting migrate_at_start
            is off.

    Making a token:
        --make-token NAME: Print the entry of a new token for the tokens file, and the token on stderr; serve nothing.
        --scope read|convert|admin: A scope of the token; may be repeated.
        --read ROOT: Root that the token may read, or '*'; may be repeated.
        --write ROOT: Root that the token may write, or '*'; may be repeated.
        --expires 90d|DATE: When the token expires: after a number of days, at the beginning of a day (UTC), or at a time with its zone.
        --s3: The entry gets a secret for clients of S3, too; the token's name is the access key.

    Examples:
        $ reshard serve --root data=/srv/checkpoints --insecure
        $ reshard serve --make-token training --scope read --scope convert \
          --read data --write data >> tokens.toml
        $ reshard serve --settings server.toml
        $ reshard serve --settings server.toml --migrate
    """
    need_packages("serve")
    if list_settings:
        _print_settings()
        return
    if make_token is not None:
        _print_token(make_token, scope, read, write, expires, s3)
        return
    if any((scope, read, write, expires, s3)):
        raise Misuse(
            "--scope, --read, --write, --expires and --s3 belong to --make-token; add it, or leave them out"
        )
    from reshard_server.serve import migrate_records
    from reshard_server.serve import serve as serve_settings
    from reshard_server.settings import load_settings

    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "state": state,
        "insecure": insecure,
        "forwarded_allow_ips": forwarded_allow_ips,
    }
    roots = _roots(root or ())
    chosen = load_settings({**flags, "roots": roots or None}, settings)
    if migrate:
        typer.echo(migrate_records(chosen))
        return
    serve_settings(chosen)


def work(
    *,
    settings: Annotated[Path | None, typer.Option(envvar="RESHARD_SETTINGS")] = None,
    state: Path | None = None,
    root: Texts = None,
) -> None:
    """Carry out conversions of a service on this host, beside its servers; answers no requests.

    It takes conversions and parts of them from the records that the servers share (database_url), as many at once as its setting running
    allows, and beats as they do: if this host dies, others resume its work. On SIGTERM or Ctrl+C its work stops, others resume it at once,
    and it exits with 0. Give it the settings of the servers, with the same roots at the same paths. Needs the packages of the extra 'server'.

    Options:
        --settings FILE: The settings, as TOML (reshard serve --list-settings). Flags and RESHARD_... come first.
        --state DIR: A folder of its own. Default: reshard-state.
        --root NAME=PATH: A folder, or a gs://, s3://, az:// or hf:// URL, that clients name as NAME/...; may be repeated.

    Examples:
        $ reshard work --settings server.toml
    """
    need_packages("work")
    from reshard_server.settings import load_settings
    from reshard_server.work import work as work_with

    roots = _roots(root or ())
    work_with(load_settings({"state": state, "roots": roots or None}, settings))


def need_packages(command: str) -> None:
    """Raises MissingPackageError for a package that a server needs and this Python lacks."""
    from importlib.util import find_spec

    needed = (
        "fastapi", "uvicorn", "pydantic_settings", "sqlalchemy", "alembic", "prometheus_client",
    )  # fmt: skip
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"reshard {command} needs {', '.join(missing)}, which this Python lacks; {how_to_install('server')}"
        )


def _roots(given: Sequence[str]) -> dict[str, str]:
    roots: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise Misuse(f"--root {text!r}: expected NAME=PATH, such as data=/srv/checkpoints")
        if name in roots:
            raise Misuse(f"--root {text!r}: the root {name!r} is named twice; choose another name")
        roots[name] = path
    return roots


def _print_settings() -> None:
    from reshard_server.settings import described_settings

    for name, variable, default, description in described_settings():
        typer.echo(f"{name} ({variable}, default: {default})\n    {description}")


def _print_token(
    name: str,
    scopes: Sequence[str] | None,
    read: Sequence[str] | None,
    write: Sequence[str] | None,
    expires: str | None,
    s3: bool,
) -> None:
    from reshard_server.auth.tokens import as_toml, make_token

    with usage():
        token, kept = make_token(
            name, scopes or ["read", "convert"], read or (), write or (), expires, s3
        )
    typer.echo(as_toml(kept), nl=False)
    typer.echo(f"token for {name!r} (shown once): {token}", err=True)
