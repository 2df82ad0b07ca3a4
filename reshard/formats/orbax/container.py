"""Reads the container of an Orbax checkpoint: its kind and its items.

There are three kinds, recognised by their marker files as in Orbax 0.12
(``experimental/v1/_src/layout/orbax_layout.py``, ``orbax_v0_layout.py``)::

    v1             orbax.checkpoint, _CHECKPOINT_METADATA, <item>/_METADATA
    v0, one item   _METADATA                               (_CHECKPOINT_METADATA is optional)
    v0, step       _CHECKPOINT_METADATA with a map of handlers, <item>/_METADATA

Before Orbax 0.4.2 there was no ``_METADATA``: a msgpack file ``checkpoint`` with the tree is in its place (``aggregate_file``).
Orbax 0.5.9 and older wrote no ``_CHECKPOINT_METADATA``.

When is a checkpoint unfinished? On a local file system Orbax 0.12 commits by a rename: every directory whose name does
not contain ``.orbax-checkpoint-tmp`` is finished (``_src/path/atomicity.py``,
``AtomicRenameTemporaryPath.validate_final``). In a bucket, which renames no folder, only a folder with
``commit_success.txt`` is finished: a checkpoint at its top, and an item in its folder to be opened by itself. A partial save
of the v1 API makes ``2.partial_save``, with ``2.partial_save.pending_<time>_<id>`` for each call, until ``partial.finalize`` merges
and renames it to ``2`` (``experimental/v1/_src/partial``); each of these is a checkpoint by its files, and a part of one. Orbax
refuses a v1 marker without ``_CHECKPOINT_METADATA``, and cannot restore an item whose handler stores a tree but that has no
``_METADATA``. Both are incomplete here as well. So is an item left in a temporary folder, and a checkpoint with the
record of an unfinished deletion (``_CHECKPOINT_DELETION``).

An item may be one array, saved with ``ArraySave`` by a version of Orbax that wrote no ``_METADATA`` for it::

    <item>/checkpoint/.zarray     and the chunks; ArrayCheckpointHandler may be given another name for the folder

Newer versions write ``_METADATA`` with one leaf of that name, so that both are read alike.

The names of leaves on disk in Orbax, and the names that are refused.

A parameter's name is its keys joined with dots; a key may contain dots and slashes itself, so two leaves can get
the same name, and stock Orbax silently mixes them up. In plain files the name
is also a path below the item's folder.

``custom_metadata`` of Orbax: of the checkpoint in ``_CHECKPOINT_METADATA``, and of each tree in its ``_METADATA``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from reshard.errors import FormatError, IncompleteCheckpointError, NotACheckpointError, shorten
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Container, Item, Leaf, PathKey
from reshard.formats.format import PlaceNames
from reshard.formats.marks import (
    AGGREGATE,
    CHECKPOINT_METADATA,
    ORBAX_MARKERS,
    TREE_METADATA,
    V1_MARKER,
)
from reshard.formats.names import is_step_name
from reshard.formats.orbax.aggregate_file import is_aggregate
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.safe_json import expect, json_value
from reshard.formats.slices.kept_metadata import KeptMetadata, json_texts, within_limits
from reshard.formats.zarr.metadata import ZARR2_FILE
from reshard.storage.commit_markers import COMMIT_MARKER
from reshard.storage.location import Location

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
    taken = ITEM_FILES - {AGGREGATE} if is_array else ITEM_FILES
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


_MEMBER = "custom_metadata"
_CHECKPOINT, _TREE = "checkpoint", "tree"


def metadata_of_orbax(container: Container, recorded: KeptMetadata) -> KeptMetadata:
    """The texts of a checkpoint, those that only its record has among them."""
    own = _own(container)
    if not own:
        return recorded
    return within_limits(replace(recorded, custom={**recorded.custom, **json_texts(own)}))


def _own(container: Container) -> dict[str, Any]:
    """The container's own texts. Keys of several trees have the tree's name, so that none is taken for the only tree of another target."""
    trees = [item for item in container.items if item.is_tree]
    found = {
        f"{_TREE} {tree.name}" if trees[1:] else _TREE: tree.meta.get(_MEMBER) for tree in trees
    }
    found[_CHECKPOINT] = container.meta.get(_MEMBER)
    return {key: value for key, value in found.items() if value}


def with_custom_metadata(target: TargetCheckpoint) -> TargetCheckpoint:
    """The target with texts from another format in their own place, so that the record keeps only those that have none."""
    container = target.container
    held = _own(container)
    left = {key: text for key, text in target.metadata.custom.items() if key not in held}
    trees = [item for item in container.items if item.is_tree]
    if _CHECKPOINT in left:
        meta = {**container.meta, _MEMBER: json.loads(left.pop(_CHECKPOINT))}
        container = replace(container, meta=meta)
    if _TREE in left and len(trees) == 1:
        (tree,) = trees
        filled = replace(tree, meta={**tree.meta, _MEMBER: json.loads(left.pop(_TREE))})
        items = tuple(filled if item is tree else item for item in container.items)
        container = replace(container, items=items)
    return replace(target, container=container, metadata=replace(target.metadata, custom=left))


DELETION_RECORD = "_CHECKPOINT_DELETION"
TEMPORARY = (".orbax-checkpoint-tmp", ".partial_save")
"""Parts of a folder's name until Orbax commits it."""

_TREE_HANDLERS = ("PyTreeCheckpointHandler", "StandardCheckpointHandler", "PyTreeHandler")
_TIMES = ("init_timestamp_nsecs", "commit_timestamp_nsecs")


Marks = Literal["top", "items"]


def final_name(name: str) -> str:
    """The name that Orbax gives a folder when it commits it; its own if it has that name."""
    for mark in TEMPORARY:
        name = name.partition(mark)[0]
    return name


def is_temporary(name: str) -> bool:
    """True if Orbax gives a folder that name only until it commits it."""
    return final_name(name) != name


def marks_of(names: PlaceNames) -> Marks | None:
    """The place of the marker files of an Orbax checkpoint, finished or not: the top of a folder, or only folders of items.

    Old versions of Orbax put none at the top of a step, so that the folder may also be something else.
    """
    if names.has_tree or any(entry.name in ORBAX_MARKERS for entry in names.entries):
        return "top"
    if any(entry.name == AGGREGATE for entry in names.entries) and has_tree(names.root):
        return "top"
    # A step that is being saved has no marks of its own, but temporary folders of items or of parts.
    if is_temporary(names.name) and any(map(is_temporary, names.folders)):
        return "top"
    return "items" if any(_is_unnamed_item(names.root, name) for name in names.folders) else None


def has_tree(folder: Location) -> bool:
    """True if a folder has a file that lists the leaves of a tree, or is an item that is one array."""
    return (folder / TREE_METADATA).exists() or is_aggregate(folder) or has_array(folder)


def is_composite(folder: Location) -> bool:
    """True if a checkpoint has its trees in folders of items, as CheckpointManager saves every step."""
    return (folder / CHECKPOINT_METADATA).is_file() and not has_tree(folder)


def is_finished(folder: Location) -> bool:
    """True if the checkpoint was committed."""
    try:
        _refuse_unfinished(folder, lambda name: (folder / name).exists())
    except IncompleteCheckpointError:
        return False
    return True


def read_container(files: MetadataFiles) -> Container:
    """The container in a folder with its items; reads ``_CHECKPOINT_METADATA`` only.

    ``meta`` is that file without the handlers, which are in the items; missing times are None.

    Raises:
        IncompleteCheckpointError: it was never committed.
        NotACheckpointError: no item in it is a tree.
    """
    root = files.folder
    _refuse_unfinished(root, files.names.__contains__)
    record = _read_record(files)
    kept = {k: v for k, v in record.items() if k != "item_handlers"}
    kept = {**kept, **{key: _time(kept.get(key)) for key in _TIMES}}
    handlers = record.get("item_handlers")
    if V1_MARKER in files.names:
        return Container("v1", _items(files, _named(handlers, root)), kept)
    if TREE_METADATA in files.names or (AGGREGATE in files.names and has_tree(root)):
        handler = handlers if isinstance(handlers, str) else ""
        return Container("v0", (Item("", "", is_tree=True, handler=handler),), kept)
    if isinstance(handlers, str):
        raise _no_single_tree(root, handlers)
    return Container("v0", _items(files, _named(handlers, root)), kept)


def _refuse_unfinished(root: Location, has: Callable[[str], bool]) -> None:
    """Raises IncompleteCheckpointError for a checkpoint that was not committed; ``has`` tells if a name is in its folder."""
    # An item is a checkpoint by itself as well, so that the name of its folder counts.
    for name in (root.name, root.parent.name):
        if is_temporary(name):
            raise IncompleteCheckpointError(
                f"{root} is a temporary folder of a save that was never committed, or in one, by the name {name!r}; use a "
                "checkpoint that was saved completely, or let Orbax finish this one (partial.finalize)"
            )
    if has(DELETION_RECORD):
        raise IncompleteCheckpointError(
            f"{root} contains {DELETION_RECORD}: the deletion of one of its items was not finished; "
            "let Orbax finish that first"
        )
    if has(V1_MARKER) and not has(CHECKPOINT_METADATA):
        raise IncompleteCheckpointError(
            f"{root} has the marker {V1_MARKER} but no {CHECKPOINT_METADATA}: it was never committed; "
            "use a checkpoint that was saved completely"
        )
    if not root.traits.renames and not (root / COMMIT_MARKER).is_file():
        raise IncompleteCheckpointError(
            f"{root} has no {COMMIT_MARKER}, which a checkpoint in a bucket gets when it is complete: it is being "
            "saved, or was never committed; use a checkpoint that was saved completely. If it is a copy of a complete one from "
            f"a disk, where older versions of Orbax write no such file: when all files are copied, put an empty {COMMIT_MARKER} "
            "at its top, last"
        )


def _read_record(files: MetadataFiles) -> dict[str, Any]:
    data = files.read(CHECKPOINT_METADATA)
    if data is None:
        return {}
    where = files.where(CHECKPOINT_METADATA)
    return expect(json_value(data, where), dict, "the checkpoint's metadata", where)


def _time(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _named(handlers: Any, root: Location) -> dict[str, str]:
    if handlers is None:
        return {}
    where = str(root / CHECKPOINT_METADATA)
    return {
        name: ""
        if handler is None
        else expect(handler, str, f"the handler of item {name!r}", where)
        for name, handler in expect(handlers, dict, "item_handlers", where).items()
    }


def _no_single_tree(root: Location, handler: str) -> Exception:
    if _stores_tree(handler):
        return IncompleteCheckpointError(
            f"{root} should contain {TREE_METADATA}, since {CHECKPOINT_METADATA} says that it was saved "
            f"by {handler}, but has none: it was never committed, or files were lost"
        )
    return NotACheckpointError(
        f"{root} was saved by {handler}, which stores no tensors; expected a checkpoint with at "
        f"least one tree ({TREE_METADATA})"
    )


def _items(files: MetadataFiles, handlers: Mapping[str, str]) -> tuple[Item, ...]:
    root = files.folder
    present = dict.fromkeys(entry.name for entry in files.entries if entry.is_folder)
    for name in present:
        if is_temporary(name):
            raise IncompleteCheckpointError(
                f"{root / name} is a temporary folder: saving this item was never finished; use a "
                "checkpoint that was saved completely"
            )
    names = [n for n in handlers if n in present] + [n for n in present if n not in handlers]
    items = tuple(_item(root, name, handlers.get(name, "")) for name in names)
    _refuse_lost(root, handlers, present)
    if not any(item.is_tree for item in items):
        raise NotACheckpointError(
            f"{root} has no item that is a tree; expected {TREE_METADATA} in at least one of: "
            f"{', '.join(names[:8]) if names else 'its folders (it has none)'}"
        )
    return items


def _item(root: Location, name: str, handler: str) -> Item:
    is_tree = has_tree(root / name)
    if not is_tree and is_array_handler(handler):
        is_tree = array_name(root / name) is not None
    if not is_tree and _stores_tree(handler):
        raise IncompleteCheckpointError(
            f"{root / name} should contain {TREE_METADATA}, since it was saved by {handler}, but has "
            "none: it was never committed, or files were lost"
        )
    return Item(name, name, is_tree, handler)


def _refuse_lost(root: Location, handlers: Mapping[str, str], present: Collection[str]) -> None:
    lost = [n for n, handler in handlers.items() if n not in present and _stores_tree(handler)]
    if lost:
        raise IncompleteCheckpointError(
            f"{root} should have the item {lost[0]!r} that {CHECKPOINT_METADATA} names, but there is "
            "no such folder: it was never committed, or files were lost"
        )


def _stores_tree(handler: str) -> bool:
    return handler.rpartition(".")[2] in _TREE_HANDLERS or is_array_handler(handler)


def _is_unnamed_item(folder: Location, name: str) -> bool:
    """True for an item of a step folder by old versions of Orbax, which wrote no ``_CHECKPOINT_METADATA``.

    A folder with that file is a checkpoint of its own, and one with the name of a step is a step.
    """
    return (
        not (name.isdigit() or is_step_name(final_name(name)))
        and has_tree(folder / name)
        and not any((folder / name / m).exists() for m in (CHECKPOINT_METADATA, V1_MARKER))
    )


HANDLER = "ArrayCheckpointHandler"


def has_array(folder: Location) -> bool:
    """True if a folder holds an array under the usual name."""
    array = folder / AGGREGATE
    # The listing of a bucket's folder tells that it has none of that name, without another request.
    return array.is_folder() and (array / ZARR2_FILE).exists()


def array_name(folder: Location) -> str | None:
    """The name of the array that a folder holds; None for no array, or several."""
    if has_array(folder):
        return AGGREGATE
    names = folder.folders() if folder.is_folder() else []
    found = [name for name in names if (folder / name / ZARR2_FILE).exists()]
    return found[0] if len(found) == 1 else None


def is_array_handler(handler: str) -> bool:
    """True if an item was saved by the handler of single arrays."""
    return handler.rpartition(".")[2] == HANDLER
