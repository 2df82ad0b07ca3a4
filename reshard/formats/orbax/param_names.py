"""The names of leaves on disk in Orbax, and the names that are refused.

A parameter's name is its keys joined with dots; a key may contain dots and slashes itself, so two leaves can get
the same name, and stock Orbax silently mixes them up. In plain files the name
is also a path below the item's folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from reshard.errors import FormatError, shorten
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.orbax.container import USUAL_NAME

MAX_COMPONENT_BYTES = 255
"""Longest file name that Linux and macOS file systems take."""

_CHUNK_FILE = re.compile(r"(c(\.[0-9]+)*|zarr\.json)\Z")
"""Names of the files in an array's own folder."""

ITEM_FILES = frozenset(
    {
        "_METADATA", "_sharding", "_strings.json", "array_metadatas", "slices.json",
        "_CHECKPOINT_METADATA", "checkpoint", "commit_success.txt", "orbax.checkpoint", "manifest.ocdbt",
        "zarr.json", ".zarray",
    }
)  # fmt: skip
"""Names in an item's folder that are not parameters, or that readers mistake for markers."""


def param_name(path: Sequence[PathKey]) -> str:
    """The keys joined with dots: the folder, or OCDBT key prefix, of a leaf."""
    return ".".join(step.key for step in path)


def check_leaves(leaves: Sequence[Leaf]) -> None:
    """Raises FormatError for leaves of one item whose names collide, or that are below a stored leaf."""
    refuse_same_names(leaves)
    _check_unique(
        (leaf for leaf in leaves if has_bytes(leaf)),
        lambda leaf: param_name(leaf.path).removesuffix("/"),
        "Orbax's dotted name",
    )
    _check_nesting(leaves)


def has_bytes(leaf: Leaf) -> bool:
    """True if the leaf has bytes of its own under its dotted name: a tensor or a string."""
    return leaf.tensor or "string" in leaf.meta


def check_path(
    path: str, what: str, *, is_file: bool = True, if_long: str = "rename it or leave it out"
) -> None:
    """Raises FormatError for a relative path whose components are unsafe or, if it names a file, too long; ``what`` names its owner."""
    remedy = "rename it or leave it out"
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{what} is not valid Unicode ({error.reason}); {remedy}") from None
    for part in path.split("/"):
        if part in ("", ".", "..") or "\0" in part:
            raise FormatError(
                f"{what} would be written to the path {shorten(path)}, whose part {shorten(part)} is not a safe "
                f"file name; {remedy}"
            )
        if is_file and len(part.encode()) > MAX_COMPONENT_BYTES:
            raise FormatError(
                f"{what} needs a file name of {len(part.encode())} bytes, but file systems take "
                f"{MAX_COMPONENT_BYTES} at most ({part[:40]!r}...); {if_long}"
            )


def check_files(names: Sequence[tuple[str, str]], *, is_array: bool = False) -> None:
    """Raises FormatError for (parameter, leaf) names whose plain files would collide with metadata or with other chunks.

    An item that is one array (``is_array``) has it in the folder ``checkpoint``, where a tree would have a file.
    """
    folders = dict(names)
    taken = ITEM_FILES - {USUAL_NAME} if is_array else ITEM_FILES
    for param, leaf in names:
        if param:  # the array without a name is at the top, whose files and folders the others may not have
            check_path(param, f"tensor {shorten(leaf)}", if_long="rename it or write with ocdbt")
        if "\\" in param:
            raise FormatError(
                f"tensor {leaf!r} would be written to the folder {param!r}, whose backslash TensorStore "
                f"reads as a slash; rename it or write with ocdbt"
            )
        first = param.partition("/")[0]
        if first in taken:
            raise FormatError(
                f"tensor {leaf!r} would be written to the folder {first!r}, which the checkpoint's "
                f"own metadata needs; rename it or write with ocdbt"
            )
        _check_inside(param, leaf, folders)


def _check_inside(param: str, leaf: str, folders: dict[str, str]) -> None:
    parts = param.split("/")
    for depth in range(len(parts) if param else 0):
        outer = folders.get("/".join(parts[:depth]))
        if outer is not None and _CHUNK_FILE.match(parts[depth]):
            raise FormatError(
                f"tensors {outer!r} and {leaf!r} would be written to the same files (the second to "
                f"{param!r}, inside the first's folder); rename one"
            )


def _keys(leaf: Leaf) -> tuple[str, ...]:
    return tuple(step.key for step in leaf.path)


def refuse_same_names(leaves: Iterable[Leaf]) -> None:
    """Raises FormatError for leaves at two paths that give one name."""
    _check_unique(leaves, lambda leaf: leaf.name, "the name")


def _check_unique(leaves: Iterable[Leaf], key: Callable[[Leaf], str], what: str) -> None:
    seen: dict[str, Leaf] = {}
    for leaf in leaves:
        first = seen.setdefault(key(leaf), leaf)
        if first is not leaf:
            raise FormatError(
                f"leaves {_keys(first)} and {_keys(leaf)} both have {what} {key(leaf)!r}, so a "
                f"reader would mix them up; rename one"
            )


def _check_nesting(leaves: Sequence[Leaf]) -> None:
    stored = {_keys(leaf): leaf.name for leaf in leaves if has_bytes(leaf)}
    for leaf in leaves:
        keys = _keys(leaf)
        for depth in range(len(keys)):
            outer = stored.get(keys[:depth])
            if outer is not None:
                raise FormatError(
                    f"leaf {leaf.name!r} is below {outer!r}, which is a leaf itself, so a tree "
                    f"cannot contain both; rename one"
                )
