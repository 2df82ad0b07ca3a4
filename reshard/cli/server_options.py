"""``--server`` and ``--token-file``: the server to ask, and its token.

Without ``--server`` the variable RESHARD_SERVER names the server. ``--server ''`` asks none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from reshard.cli.options import Misuse

SERVER = "By a server"
SERVER_VARIABLE = "RESHARD_SERVER"
TOKEN_VARIABLE = "RESHARD_TOKEN"  # noqa: S105  (the name of a variable)


def _server(what: str) -> Any:
    """The option; ``what`` says what the server does for a command."""
    return typer.Option(
        metavar="URL",
        help=f"{what} Default: the variable {SERVER_VARIABLE}.",
        rich_help_panel=SERVER,
    )


Server = Annotated[
    str | None,
    _server(
        "Let this server convert: SRC and DST are then ROOT/path on the server, and --layout and --map may also name "
        "what it stores. Ctrl-C stops watching; the conversion continues."
    ),
]
ApplyServer = Annotated[
    str | None,
    _server(
        "Let this server convert: BASE, every DELTA and DST are then ROOT/path on the server, and --layout may also name what it stores. "
        "Ctrl-C stops watching; the conversion continues."
    ),
]
DeltaServer = Annotated[
    str | None,
    _server(
        "Let this server make the delta: OLD, NEW and DST are then ROOT/path on the server, and --map may also name what it stores. Ctrl-C "
        "stops watching; the server continues."
    ),
]
AskedServer = Annotated[
    str | None, _server("Ask this server: paths are then ROOT/path on the server.")
]
PlanServer = Annotated[
    str | None,
    _server(
        "Let this server plan: SRC and DST are then ROOT/path on the server, and --layout and --map may also name what "
        "it stores."
    ),
]
JobsServer = Annotated[str | None, _server("The server whose conversions are meant.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"A file that contains the server's token. Default: the variable {TOKEN_VARIABLE}.",
        rich_help_panel=SERVER,
    ),
]


class Asked(Struct, frozen=True):
    """The server that is asked.

    Attributes:
        token_file: None where a variable has the token.
        by_variable: true if a variable names the server, and no option, for a command that works on this host, too.
    """

    url: str
    token_file: Path | None = None
    by_variable: bool = False


def asked_server(server: str | None, token_file: Path | None) -> Asked | None:
    """The server that the options or the variable name; None for none. A usage error for a token without a server."""
    url = os.environ.get(SERVER_VARIABLE) if server is None else server
    if url:
        return Asked(url, token_file, by_variable=server is None)
    if token_file is not None:
        raise Misuse("--token-file belongs to --server; add it, or leave it out")
    return None


def needed_server(server: str | None, token_file: Path | None) -> Asked:
    """The same for a command that only a server can carry out; a usage error where none is named."""
    asked = asked_server(server, None)
    if asked is None:
        raise Misuse(
            f"no server is named: give its URL by --server, such as http://checkpoints:8080, or in the variable {SERVER_VARIABLE}"
        )
    return Asked(asked.url, token_file)


def refuse_here(asked: Asked, given: Mapping[str, Any]) -> None:
    """A usage error for an option that only a command on this host takes."""
    for name, value in given.items():
        if value is not None:
            raise Misuse(f"{name} is of this host{lets_a_server(asked, 'leave it out')}")


def lets_a_server(asked: Asked, mend: str) -> str:
    """The rest of a sentence: a server works, and the remedy ``mend``. It blames no option that was not given."""
    if asked.by_variable:
        return f", but {SERVER_VARIABLE} lets the server {asked.url} do the work; {mend}, or let this host work (--server '')"
    return f", but --server lets a server do the work; {mend}, or leave --server out"


def is_stored_name(given: str) -> bool:
    """True if a layout or a map is no file of this host and does not look like one: then the server may store it."""
    return not (Path(given).exists() or Path(given).suffix or "/" in given)
