"""The words of the command line that several commands share, each with the help that teaches it.

Help is rich markup, where an opening bracket begins a style; brackets meant as they are have a
backslash.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import reshard
from reshard.errors import LayoutError
from reshard.geometry.sizes import parse_bytes

LAYOUT, CHANGES, OUTPUT, RESOURCES = "Layout", "Changes on the way", "Output", "Resources"
SERVER = "By a server"


class Misuse(typer.BadParameter):
    """A command line that makes no sense; what is said of it is a whole sentence already."""

    def format_message(self) -> str:
        """The message, without the ``Invalid value:`` that typer puts before it."""
        return self.message


def size(text: str) -> int:
    """Bytes that an option names; the usage error says what was expected."""
    try:
        nbytes = parse_bytes(text)
    except LayoutError as error:
        raise typer.BadParameter(str(error)) from None
    if nbytes < 1:
        raise typer.BadParameter(f"{text!r} is no size that helps; expected at least 1 byte")
    return nbytes


_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)


def source_of(src: str, step: str | None, item: str | None) -> str:
    """The path of the checkpoint that SRC, --step and --item name; ``latest`` is looked up here, once."""
    return reshard.locate(src, step=_step(step), item=item)


def choice_there(step: str | None, item: str | None) -> dict[str, Any]:
    """--step and --item as a server is asked for them, which looks them up; nothing where they are left out."""
    asked = {"step": _step(step), "item": item}
    return {name: value for name, value in asked.items() if value is not None}


def _step(text: str | None) -> int | Literal["latest"] | None:
    if text is None:
        return None
    if text == "latest":
        return "latest"
    if not _DIGITS.fullmatch(text):
        raise typer.BadParameter(f"--step {text!r}: expected the number of a step, or latest")
    return int(text)


Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="The checkpoint to read; with --step, the folder of a training run.",
    ),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="N|latest",
        help="Read this step of a training run, whose folder is then given; latest is the last one committed.",
    ),
]
Item = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Read this item of a checkpoint that has several, such as model; names then begin below it.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="DST", help="Where the new checkpoint goes; it appears whole or not at all."
    ),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        parser=size,
        metavar="SIZE",
        help="All buffers together stay below this, such as 512MiB. Default: a quarter of the "
        "memory, 1GiB at most.",
        rich_help_panel=RESOURCES,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Tasks that run at once. Default: the number of processors, at least 2 and at most 16.",
        rich_help_panel=RESOURCES,
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Let this server convert: SRC and DST are then ROOT/path there, and --layout may also name a layout that "
        "it stores. Ctrl-C stops watching, and the conversion goes on.",
        rich_help_panel=SERVER,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file that holds the server's token. Default: the variable RESHARD_TOKEN.",
        rich_help_panel=SERVER,
    ),
]
ShowAll = Annotated[
    bool,
    typer.Option(
        "--all",
        help="A row for each tensor, however many there are, with whole names and every column.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on stdout, errors too; keys stay.")
]


def examples(*lines: str) -> str:
    """The end of a command's help: commands to copy, kept line by line."""
    shown = (line if line.startswith(" ") else f"  $ {line}" for line in lines)
    return "\b\nExamples:\n" + "\n".join(shown).replace("[", "\\[")
