"""The words of the command line that several commands share, each with the help that teaches it.

Help is rich markup, where an opening bracket begins a style; brackets meant as they are have a
backslash.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

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


def casts(rules: list[str] | None) -> list[tuple[str, str]]:
    """``RE=DTYPE`` or ``float=DTYPE``, split at the last ``=``."""
    return [_halves("--cast", "RE=DTYPE", rule, rule.rpartition("=")) for rule in rules or []]


def halves(option: str, form: str, rule: str) -> tuple[str, str]:
    r"""A rule split at its last ``=`` without a backslash; ``\=`` behind it is an equals sign.

    The first half may be empty.
    """
    first, equals, second = _at_last_bare_equals(rule)
    if not equals or not second:
        raise Misuse(f"{option} {rule!r}: expected {form}, such as {_EXAMPLES[option]}")
    return first, _ESCAPED_EQUALS.sub(r"\1=", second)


def renames(rules: list[str] | None) -> list[tuple[str, str]]:
    r"""``RE=NEW`` split at the last ``=`` without a backslash; ``\=`` in NEW is an equals sign."""
    pairs = [
        _halves("--rename", "RE=NEW", rule, _at_last_bare_equals(rule)) for rule in rules or []
    ]
    return [(pattern, _ESCAPED_EQUALS.sub(r"\1=", new)) for pattern, new in pairs]


_EQUALS = re.compile(r"(\\*)=")
_ESCAPED_EQUALS = re.compile(r"((?:\\\\)*)\\=")


def _at_last_bare_equals(rule: str) -> tuple[str, str, str]:
    bare = [m.end() - 1 for m in _EQUALS.finditer(rule) if len(m[1]) % 2 == 0]
    return (rule[: bare[-1]], "=", rule[bare[-1] + 1 :]) if bare else ("", "", rule)


def _halves(option: str, form: str, rule: str, split: tuple[str, str, str]) -> tuple[str, str]:
    pattern, equals, new = split
    if not equals or not pattern or (not new and option == "--cast"):
        raise Misuse(f"{option} {rule!r}: expected {form}, such as {_EXAMPLES[option]}")
    return pattern, new


_EXAMPLES = {
    "--cast": "float=bfloat16",
    "--rename": "'^params/=model/'",
    "--target": "serving.yaml=served",
}

_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)


def source_of(src: str, step: str | None, item: str | None) -> str:
    """The path of the checkpoint that SRC, --step and --item name; ``latest`` is looked up here, once."""
    from reshard.formats.choose import chosen

    return chosen(src, _step(step), item)


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
Layout = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Layout file, YAML or JSON: the target mesh, and by which axes each tensor is split. "
        "Without it every tensor keeps the source's layout.",
        rich_help_panel=LAYOUT,
    ),
]
Mesh = Annotated[
    str | None,
    typer.Option(
        metavar="AXIS=N,…",
        help="Target mesh in place of the file's, such as data=4,model=2. Without a file, every "
        "tensor keeps its axes, over this mesh.",
        rich_help_panel=LAYOUT,
    ),
]
MissingAxes = Annotated[
    Literal["error", "replicate"],
    typer.Option(
        help="Axes of the source or of the file that --mesh lacks: error refuses them; replicate leaves them out, "
        "so that what they split is replicated, and says which.",
        rich_help_panel=LAYOUT,
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RE",
        help="Keep only leaves whose name this regular expression finds; may be repeated. "
        "Default: all. Without look-ahead and back-references: docs/reference/layout-files.md lists what is supported.",
        rich_help_panel=CHANGES,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RE",
        help="Leave out what this finds, after --select; may be repeated.",
        rich_help_panel=CHANGES,
    ),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RE=NEW",
        help=r"Replace what RE finds by NEW, which may use groups (\1); the first rule that finds "
        r"something counts. A list whose items are renumbered 0 to n-1 stays a list. Split at the last "
        r"'='; write '\=' for one in NEW.",
        rich_help_panel=CHANGES,
    ),
]
Cast = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RE=DTYPE",
        help="Store tensors whose name RE finds as DTYPE; losses are counted and reported. In place of RE, the "
        "word float, int, complex or bool, or a dtype's name, takes every tensor of that dtype: float=bfloat16 "
        "casts all floats (bfloat16 and float8 among them) and leaves counters and PRNG keys alone. Write (float) "
        "to search names for that word. float8_e4m3fn:saturate makes what is too large the largest value. The "
        "first rule that applies counts.",
        rich_help_panel=CHANGES,
    ),
]
Compression = Annotated[
    str,
    typer.Option(
        metavar="CODEC",
        help="none, zstd\\[:level], gzip\\[:level], blosc, or keep (each tensor's own). none is the fastest to "
        "write and to restore.",
        rich_help_panel=OUTPUT,
    ),
]
ChunkBytes = Annotated[
    int | None,
    typer.Option(
        parser=size,
        metavar="SIZE",
        help="Store a shard in several chunks where it is larger than this. Default: 256MiB. Shards below "
        "1MiB share a chunk, and any other is one chunk; the layout stays as asked.",
        rich_help_panel=OUTPUT,
    ),
]
Ocdbt = Annotated[
    bool,
    typer.Option(
        "--ocdbt",
        help="Pack the chunks into one OCDBT database instead of plain files.",
        rich_help_panel=OUTPUT,
    ),
]
Style = Annotated[
    Literal["v0", "v1"] | None,
    typer.Option(
        help="Orbax's form of checkpoint. Default: the source's.",
        rich_help_panel=OUTPUT,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace DST if it exists; the old one goes when the new one is complete.",
        rich_help_panel=OUTPUT,
    ),
]
Restart = Annotated[
    bool,
    typer.Option(
        "--restart",
        help="Start over. Without it, an interrupted run resumes where it stopped.",
        rich_help_panel=OUTPUT,
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
