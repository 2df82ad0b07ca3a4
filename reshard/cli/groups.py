"""Groups of options that several commands share, each with what commands do with it.

A command has a parameter of a group's type, and ``spread`` gives typer the fields in its place.

``--server`` names the server to ask, ``--token-file`` has its token. Without ``--server`` the variable RESHARD_SERVER names the server.
``--server ''`` asks none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from msgspec import Struct

import reshard
from reshard.cli.console import print_answer, warn
from reshard.cli.options import (
    Item,
    Json,
    MaxMemory,
    Misuse,
    Quiet,
    ShowAll,
    Step,
    Unlisted,
    Workers,
    step_of,
)

if TYPE_CHECKING:
    from reshard.cli.progress import Watcher


class Group(Struct, frozen=True):
    """Options that stand together in the help of a command, in the order of the fields."""


class StepAndItem(Group, frozen=True):
    """The part of a run or of a checkpoint with several items."""

    step: Step = None
    item: Item = None

    def of(self, src: str) -> str:
        """The path of the checkpoint that SRC, --step and --item name; ``latest`` is looked up here, once."""
        return reshard.locate(src, step=step_of(self.step), item=self.item)


class Chosen(StepAndItem, frozen=True):
    """The same, and the treatment of files that an index does not list."""

    unlisted: Unlisted = "leave"

    @property
    def option(self) -> dict[str, str]:
        """--unlisted as the library and requests take it; left out at its default, since an older server refuses it."""
        return {} if self.unlisted == "leave" else {"unlisted": self.unlisted}

    def there(self) -> dict[str, Any]:
        """The choice in the form of a request to a server; options at their defaults are left out."""
        asked = {"step": step_of(self.step), "item": self.item, **self.option}
        return {name: value for name, value in asked.items() if value is not None}


class Resources(Group, frozen=True):
    """The memory and the tasks of a run."""

    max_memory: MaxMemory = None
    workers: Workers = None


class Output(Group, frozen=True):
    """The form of a command's answer."""

    show_all: ShowAll = False
    quiet: Quiet = False
    as_json: Json = False

    def watching(self) -> AbstractContextManager[Watcher | None]:
        """The ``progress`` callback of a run."""
        from reshard.cli.progress import watching

        return watching(self.as_json or self.quiet)

    def is_told(self, command: str, record: Struct, warnings: Iterable[str] = ()) -> bool:
        """Prints the JSON, or with --quiet the warnings alone; false where a view is due, which takes rich."""
        if self.as_json:
            print_answer(command, record)
        elif self.quiet:
            warn(warnings)
        return self.as_json or self.quiet


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its groups as parameters of their own."""
    own = signature(command, eval_str=True)
    groups = {
        name: each.annotation
        for name, each in own.parameters.items()
        if isinstance(each.annotation, type) and issubclass(each.annotation, Group)
    }

    @wraps(command)
    def gathered(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(*(given.pop(field) for field in group.__struct_fields__))
        command(**given)

    parameters: list[Parameter] = []
    for name, each in own.parameters.items():
        if name in groups:
            parameters += _fields_of(groups[name])
        else:
            is_rest = each.kind is Parameter.VAR_KEYWORD
            parameters.append(each if is_rest else each.replace(kind=Parameter.KEYWORD_ONLY))
    gathered.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it; no type declares it
    return gathered


def _fields_of(group: type[Group]) -> list[Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in zip(group.__struct_fields__, group.__struct_defaults__, strict=True)
    ]


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
