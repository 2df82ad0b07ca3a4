"""The options of a conversion's target on the command line, with their help texts.

TARGET_OPTIONS lists them; ``convert`` and ``plan`` have all of them. Names and defaults are the library's
(``reshard.ConvertOptions``); only ``--verify`` is called ``check`` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, TypeVar

import typer

import reshard
from reshard import Target
from reshard.cli.option_names import LIBRARY_NAMES
from reshard.cli.options import CHANGES, LAYOUT, OUTPUT, size, usage
from reshard.cli.rules import casts, renames
from reshard.cli.targets import Targets

_F = TypeVar("_F", bound=Callable[..., None])

KEYWORD = Parameter.KEYWORD_ONLY

Layout = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Layout file, YAML or JSON: the target mesh, and the axes that split each tensor. "
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
        help="Axes of the source or of the file that --mesh lacks: error refuses them; replicate replicates "
        "the dimensions that they split, and says which.",
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
        help="Leave out leaves whose name this finds, after --select; may be repeated.",
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
        "word float, int, complex or bool, or a dtype's name, means every tensor of that dtype: float=bfloat16 "
        "casts all floats (bfloat16 and float8 among them) and leaves counters and PRNG keys alone. Write (float) "
        "to search names for that word. float8_e4m3fn:saturate clips values that are too large to the largest one. The "
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
        help="Store a shard in several chunks if it is larger than this. Default: 256MiB. Shards below "
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
To = Annotated[
    Literal["orbax", "safetensors"] | None,
    typer.Option(
        "--to",
        help="Format of DST. Default: safetensors where DST ends in .safetensors, else the source's. --compression, "
        "--chunk-bytes, --ocdbt and --style are for Orbax; --files, --file-bytes, --file-names and --carry for "
        "safetensors.",
        rich_help_panel=OUTPUT,
    ),
]
Files = Annotated[
    Literal["one", "shards", "ranks", "dcp"] | None,
    typer.Option(
        help="Files of a safetensors DST. shards, the default: whole tensors and an index, as on Hugging Face; one: a "
        "single file; ranks: a file for each device of the mesh, with its slices; dcp: each slice once, for "
        "torch's distributed checkpoint.",
        rich_help_panel=OUTPUT,
    ),
]
FileBytes = Annotated[
    int | None,
    typer.Option(
        parser=size,
        metavar="SIZE",
        help="Most bytes of tensors in one of --files shards; a tensor is never split. Default: 5GB.",
        rich_help_panel=OUTPUT,
    ),
]
FileNames = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Names of the files, such as 'part-{number}.safetensors'. {number} counts from 1, {rank} from 0; {count} "
        "is how many there are.",
        rich_help_panel=OUTPUT,
    ),
]
Carry = Annotated[
    bool,
    typer.Option(
        "--carry",
        help="Copy the files beside the weights of a safetensors SRC, such as config.json, as they are, and folders of at most "
        "64 MiB; a warning names larger ones.",
        rich_help_panel=OUTPUT,
    ),
]
MissingChunks = Annotated[
    Literal["refuse", "warn", "allow"] | None,
    typer.Option(
        help="Chunks of SRC that are not stored: refuse is an error; warn and allow take the fill value, mostly 0, with or "
        "without a warning. Default: refuse where SRC records that it stores every chunk, else warn.",
        rich_help_panel=OUTPUT,
    ),
]
Verify = Annotated[
    Literal["written", "readback"],
    typer.Option(
        help="written: for each tensor, the bytes read have the same digest as the bytes handed to the "
        "file system, each piece in its place; chunks that are copied encoded are checked by their CRC32C. "
        "readback: the output is also read again from storage and compared with that digest; only this proves it.",
        rich_help_panel=OUTPUT,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace DST if it exists; the old one goes when the new one is complete. In a bucket it goes first.",
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
State = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Folder in a bucket for the records by which a run to a bucket resumes. Default: beside DST.",
        rich_help_panel=OUTPUT,
    ),
]
UnsafeCommit = Annotated[
    bool,
    typer.Option(
        "--unsafe-commit",
        help="Write also to a bucket without conditional writes, where two runs to one DST could mix.",
        rich_help_panel=OUTPUT,
    ),
]

TARGET_OPTIONS: Mapping[str, Any] = {
    "layout": Layout,
    "mesh": Mesh,
    "missing_axes": MissingAxes,
    "target": Targets,
    "select": Select,
    "drop": Drop,
    "rename": Rename,
    "cast": Cast,
    "compression": Compression,
    "chunk_bytes": ChunkBytes,
    "ocdbt": Ocdbt,
    "style": Style,
    "to": To,
    "files": Files,
    "file_bytes": FileBytes,
    "file_names": FileNames,
    "carry": Carry,
    "missing_chunks": MissingChunks,
    "verify": Verify,
    "overwrite": Overwrite,
    "restart": Restart,
    "state": State,
    "unsafe_commit": UnsafeCommit,
}
"""In the order of the help. ``target`` names several targets; it is not an option of a single one."""

RULES = ("select", "drop", "rename", "cast")
PARSERS: Mapping[str, Callable[[Any], Any]] = {"rename": renames, "cast": casts}

_OF_EACH = ("layout", "mesh", "target")
"""The options of which ``targets_of`` makes the targets; the other options apply to all targets."""


def takes_target_options(*left_out: str) -> Callable[[_F], _F]:
    """Gives a command every option of a target except those left out, after ``--item``, in place of its ``**given``."""

    def decorate(command: _F) -> _F:
        own = signature(command, eval_str=True)
        *kept, _ = own.parameters.values()
        at = list(own.parameters).index("item") + 1
        options = [
            Parameter(name, KEYWORD, default=default_of(name), annotation=option)
            for name, option in TARGET_OPTIONS.items()
            if name not in left_out
        ]
        shown = [p.replace(kind=KEYWORD) for p in kept]
        parameters = [*shown[:at], *options, *shown[at:]]
        # inspect.signature, which typer calls, takes the attribute; the type of a function does not declare it.
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def default_of(name: str) -> Any:
    """The library's default; None for lists, and for ``target``."""
    value = getattr(Target(""), LIBRARY_NAMES.get(name, name))
    return value if isinstance(value, bool) else value or None


def given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that apply to all targets, parsed; options at their default are left out."""
    return {
        name: PARSERS[name](value) if name in PARSERS else value
        for name, value in given.items()
        if name not in _OF_EACH and value not in (default_of(name), [])
    }


def check_words(options: Mapping[str, Any], meshes: Iterable[str | None]) -> None:
    """A usage error for options and meshes that are wrong with any checkpoint."""
    # Whether there may be a folder of records depends on the target.
    known = {name: value for name, value in library_options(options).items() if name != "state"}
    with usage():
        for mesh in {None, *meshes}:
            reshard.check_arguments(mesh=mesh, **known)


def library_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options under the library's names."""
    return {LIBRARY_NAMES.get(name, name): value for name, value in options.items()}
