"""``reshard serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reshard.cli.options import Misuse, examples, usage
from reshard.errors import MissingPackageError
from reshard.version import how_to_install

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVE_EXAMPLES = examples(
    "reshard serve --root data=/srv/checkpoints --insecure",
    "reshard serve --make-token training --scope read --scope convert \\",
    "    --read data --write data >> tokens.toml",
    "reshard serve --settings server.toml",
    "reshard serve --settings server.toml --migrate",
)

TOKEN = "Making a token"  # noqa: S105  (the heading of a panel)

Host = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1."),
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one. Default: 8080."),
]
State = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for the server's records. Default: reshard-state."),
]
Root = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PATH",
        help="A folder, or a gs://, s3:// or az:// URL, that clients may name as NAME/...; may be repeated.",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        envvar="RESHARD_SETTINGS",
        metavar="FILE",
        help="Every other setting, as TOML (--list-settings). Flags and RESHARD_... come first.",
    ),
]
Insecure = Annotated[
    bool | None,
    typer.Option("--insecure", help="No token is needed; on a loopback address only."),
]
ForwardedAllowIps = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESSES",
        help="Proxies whose X-Forwarded-For, -Proto and -Host are trusted: addresses and networks between commas, or "
        "* for every peer. Default: none.",
    ),
]
ListSettings = Annotated[
    bool,
    typer.Option(
        "--list-settings",
        help="Print every setting with its variable, default and description; serve nothing.",
    ),
]
Migrate = Annotated[
    bool,
    typer.Option(
        "--migrate",
        help="Migrate the records of an older version to this one and exit. A start does it too, unless the "
        "setting migrate_at_start is off.",
    ),
]
MakeToken = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Print the entry of a new token for the tokens file, and the token on stderr; serve nothing.",
        rich_help_panel=TOKEN,
    ),
]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="read|convert|admin",
        help="A scope of the token; may be repeated.",
        rich_help_panel=TOKEN,
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROOT",
        help="Root that the token may read, or '*'; may be repeated.",
        rich_help_panel=TOKEN,
    ),
]
Write = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROOT",
        help="Root that the token may write, or '*'; may be repeated.",
        rich_help_panel=TOKEN,
    ),
]
Expires = Annotated[
    str | None,
    typer.Option(
        metavar="90d|DATE",
        help="When the token expires: after a number of days, at the beginning of a day (UTC), or at a time with its zone.",
        rich_help_panel=TOKEN,
    ),
]


def serve(
    host: Host = None,
    port: Port = None,
    state: State = None,
    root: Root = None,
    settings: SettingsFile = None,
    insecure: Insecure = None,
    forwarded_allow_ips: ForwardedAllowIps = None,
    list_settings: ListSettings = False,
    migrate: Migrate = False,
    make_token: MakeToken = None,
    scope: Scopes = None,
    read: Read = None,
    write: Write = None,
    expires: Expires = None,
) -> None:
    """Serve conversions by HTTP: durable jobs, progress, schedules, a page to watch them.

    Accepted conversions survive the end of this process: start it again with the same state and they resume where they
    stopped. On SIGTERM or Ctrl+C it takes no new requests, finishes open ones, and exits with 0. Needs the packages of
    the extra 'server'.
    """
    _need_packages()
    if list_settings:
        _print_settings()
        return
    if make_token is not None:
        _print_token(make_token, scope, read, write, expires)
        return
    if any((scope, read, write, expires)):
        raise Misuse(
            "--scope, --read, --write and --expires belong to --make-token; add it, or leave them out"
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


def _need_packages() -> None:
    from importlib.util import find_spec

    needed = (
        "fastapi", "uvicorn", "pydantic_settings", "sqlalchemy", "alembic", "prometheus_client",
    )  # fmt: skip
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"reshard serve needs {', '.join(missing)}, which this Python lacks; {how_to_install('server')}"
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
) -> None:
    from reshard_server.auth.tokens import as_toml, make_token

    with usage():
        token, kept = make_token(
            name, scopes or ["read", "convert"], read or (), write or (), expires
        )
    typer.echo(as_toml(kept), nl=False)
    typer.echo(f"token for {name!r} (shown once): {token}", err=True)
