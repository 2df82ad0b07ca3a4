"""The options of a target, declared: OPTIONS, by name, with what each surface needs (``reshard/options.py``).

Options that every format has are declared here; each format declares its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from reshard.arguments import MissingChunks
from reshard.conversion.options import Check, FormatName, IdentityMode, Target
from reshard.formats.target_files import FILES
from reshard.formats.target_files import ORBAX_OPTIONS as ORBAX
from reshard.formats.target_files import SAFETENSORS_OPTIONS as SAFETENSORS
from reshard.layout.layout_file import MissingAxes
from reshard.options import CHANGES, LAYOUT, Option

OF_FORMATS: Mapping[str, Mapping[str, Option]] = {
    "Orbax": ORBAX,
    "safetensors": SAFETENSORS,
    "torch DCP": {},
    "Keras": {},
    "TensorFlow": FILES,
}
"""The options that only one format has, by the format's title; of the formats that are written."""


def _pair(old: str, new: str) -> str | tuple[str, str]:
    """``old=new``, as earlier versions wrote it; a tuple where that text would be ambiguous."""
    return (old, new) if "=" in old or "=" in new else f"{old}={new}"


def _patterns_text(patterns: Sequence[str]) -> str:
    return str(list(patterns))


def _pairs_text(pairs: Sequence[tuple[str, str]]) -> str:
    return str([_pair(*pair) for pair in pairs])


def _belong_to(title: str, options: Mapping[str, Option]) -> str:
    """The sentence of the help that lists the options of a format."""
    *first, last = (f"--{name.replace('_', '-')}" for name in options)
    others = (of for other, of in OF_FORMATS.items() if other != title)
    is_shared = any(options.keys() < of.keys() for of in others)
    return f"{', '.join(first)} and {last} are for {title}{' too' * is_shared}"


OF_EVERY_FORMAT: Mapping[str, Option] = {
    "layout": Option(
        kind="layout",
        group=LAYOUT,
        metavar="FILE",
        help=(
            "Layout file, YAML or JSON: the target mesh, and the axes that split each tensor. Without it every tensor keeps "
            "the source's layout."
        ),
        description="Name of a stored layout (name or name@version), or the content of a layout file.",
        examples=({"mesh": {"axes": ["model"], "shape": [8]}, "rules": []},),
    ),
    "mesh": Option(
        kind="text",
        group=LAYOUT,
        metavar="AXIS=N,…",
        help=(
            "Target mesh in place of the file's, such as data=4,model=2. Without a file, every tensor keeps its axes, over "
            "this mesh."
        ),
        examples=("data=4,model=2",),
        max_length=1000,
        label="Mesh",
        hint="Replaces the layout's mesh, such as `data=4,model=2`.",
    ),
    "missing_axes": Option(
        kind="choice",
        group=LAYOUT,
        choices=get_args(MissingAxes),
        help=(
            "Axes of the source or of the file that --mesh lacks: error refuses them; replicate replicates the dimensions "
            "that they split, and says which."
        ),
        description="Axes of the source or the layout that the mesh lacks: refuse them, or replicate the dimensions that they split.",
        label="Axes that the mesh lacks",
        hint="Axes of the source or of the layout that are not on the mesh.",
        labels=("refuse the conversion", "replicate over them"),
    ),
    "select": Option(
        kind="patterns",
        group=CHANGES,
        show=_patterns_text,
        metavar="RE",
        help=(
            "Keep only leaves whose name this regular expression finds; may be repeated. Default: all. Without look-ahead "
            "and back-references: docs/reference/layout-files.md lists what is supported."
        ),
        label="Select",
        hint="Patterns of names, one per line. Empty selects all.",
    ),
    "drop": Option(
        kind="patterns",
        group=CHANGES,
        show=_patterns_text,
        metavar="RE",
        help="Leave out leaves whose name this finds, after --select; may be repeated.",
        label="Drop",
        hint="Patterns, one per line.",
    ),
    "rename": Option(
        kind="pairs",
        group=CHANGES,
        show=_pairs_text,
        metavar="RE=NEW",
        help=(
            r"Replace what RE finds by NEW, which may use groups (\1); the first rule that finds something counts. A list "
            r"whose items are renumbered 0 to n-1 stays a list. Split at the last '='; write '\=' for one in NEW."
        ),
        description="[pattern, replacement] each.",
        label="Rename",
        hint="PATTERN=NEW, one per line.",
    ),
    "cast": Option(
        kind="pairs",
        group=CHANGES,
        show=_pairs_text,
        metavar="RE=DTYPE",
        help=(
            "Store tensors whose name RE finds as DTYPE; losses are counted and reported. In place of RE, the word float, "
            "int, complex or bool, or a dtype's name, means every tensor of that dtype: float=bfloat16 casts all floats "
            "(bfloat16 and float8 among them) and leaves counters and PRNG keys alone. Write (float) to search names for "
            "that word. float8_e4m3fn:saturate clips values that are too large to the largest one. The first rule that "
            "applies counts."
        ),
        description="[pattern, dtype] each; float, int, complex, bool or a dtype in place of the pattern takes every tensor of it.",
        examples=([["float", "bfloat16"]],),
        label="Cast",
        hint="PATTERN=DTYPE, one per line. `float=bfloat16` casts all floats; a dtype may end in `:saturate`.",
    ),
    "map": Option(
        kind="map",
        group=CHANGES,
        metavar="FILE",
        help=(
            "Map file, YAML or JSON, or the name of a recipe (reshard recipes): which tensors of SRC become which of DST, by rules that rename, "
            "turn, stack, split, fuse and scale "
            "them. Then --select and --drop search names of SRC, and --rename, --cast and the layout names of DST. "
            "docs/reference/maps.md describes it."
        ),
        description="The content of a map file, as an object or as its text of several lines, or the name of a recipe.",
        examples=({"map": [{"from": "params/kernel", "to": "weight", "shape": "e f -> f e"}]},),
        label="Map",
        hint="The text of a map file, or the name of a recipe: which tensors become which. Empty keeps names and shapes.",
    ),
    "sizes": Option(
        kind="sizes",
        group=CHANGES,
        metavar="NAME=N",
        help="The size of a dimension of the map that no shape tells, such as heads=32; may be repeated.",
        description="Sizes of dimensions of the map that no shape tells.",
        examples=({"heads": 32},),
        label="Sizes",
        hint="NAME=N, one per line, for dimensions of the map that no shape tells.",
    ),
    "reverse": Option(
        kind="flag",
        group=CHANGES,
        help="Read the map from right to left: DST gets what SRC was made of.",
        label="Read the map backwards",
    ),
    "to": Option(
        kind="choice",
        choices=(None, *get_args(FormatName)),
        show=str,
        metavar="FORMAT",
        help=f"Format of DST: {', '.join(get_args(FormatName))}. Default: safetensors where DST ends in .safetensors, keras for "
        ".weights.h5, else the source's. "
        f"{'; '.join(_belong_to(*each) for each in OF_FORMATS.items() if each[1])}. Of tensorflow DST is what the names of its files begin "
        "with.",
        description="Format of the target; without it safetensors where the target ends in .safetensors, keras for .weights.h5, else the source's.",
        label="Format",
        hint="Compression, chunk size, style and OCDBT are for Orbax; files, shard size and file names for safetensors; files and shard size for "
        "TensorFlow too.",
        labels=("as the source", *OF_FORMATS),
    ),
    "missing_chunks": Option(
        kind="choice",
        choices=(None, *get_args(MissingChunks)),
        help=(
            "Chunks of SRC that are not stored: refuse is an error; warn and allow take the fill value, mostly 0, with or "
            "without a warning. Default: refuse where SRC records that it stores every chunk, else warn."
        ),
        description=(
            "Chunks of the source that are not stored: refuse them, or take the fill value with or without a warning; "
            "without it they are refused where the source records that it stores every chunk, else a warning tells."
        ),
        label="Chunks of the source that are not stored",
        hint="Older versions of Orbax leave out chunks of zeros.",
        labels=(
            "by what the source records",
            "refuse the conversion",
            "fill them and warn",
            "fill them",
        ),
    ),
    "overwrite": Option(
        kind="flag",
        help="Replace DST if it exists; the old one goes when the new one is complete. In a bucket it goes first.",
        label="Overwrite an existing target",
    ),
    "check": Option(
        kind="choice",
        choices=get_args(Check),
        is_planned=False,
        help=(
            "written: for each tensor, the bytes read have the same digest as the bytes handed to the file system, each "
            "piece in its place; chunks that are copied encoded are checked by their CRC32C. readback: the output is also "
            "read again from storage and compared with that digest; only this proves it."
        ),
        label="Check before publishing",
        hint="Compares digests of every tensor.",
        labels=("the written bytes", "the bytes read back from storage"),
    ),
    "identity": Option(
        kind="choice",
        choices=(None, *get_args(IdentityMode)),
        metavar="HOW",
        help=(
            "The identity of the weights (reshard identify), by one of four words: carry copies the source's where every digest is the recorded "
            "one; compute "
            "hashes what was written, read again; check does too, and publishes only if the root is the source's; none does nothing. "
            "compute and check also read a DST that was finished before. Default: carry where SRC has one and no tensor gets other bits."
        ),
        label="Identity of the weights",
        hint="One root for the same weights in any layout and format.",
        labels=(
            "carry it where the source has one",
            "carry it from the source",
            "compute it of what is written",
            "compute it, and compare it with the source's",
            "none",
        ),
    ),
    "restart": Option(
        kind="flag",
        is_planned=False,
        help="Start over. Without it, an interrupted run resumes where it stopped.",
        description="Discard an earlier attempt's work.",
        label="Discard an earlier attempt's work",
    ),
    "state": Option(
        kind="text",
        is_planned=False,
        is_for_clients=False,
        metavar="URL",
        help="Folder in a bucket for the records by which a run to a bucket resumes. Default: beside DST.",
    ),
    "unsafe_commit": Option(
        kind="flag",
        is_planned=False,
        is_for_clients=False,
        help="Write also to a bucket without conditional writes, where two runs to one DST could mix.",
    ),
}

_DECLARED = {**OF_EVERY_FORMAT, **ORBAX, **SAFETENSORS}

OPTIONS: Mapping[str, Option] = {
    name: _DECLARED[name] for name in Target.__struct_fields__ if name != "target"
}
"""All options, in the order of the fields of ``Target``."""
