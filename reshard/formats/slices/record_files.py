"""Makes and writes the slices.json files that a checkpoint lacks.

Each file is synced and appears by one rename; nothing else in the checkpoint changes. The top one comes last, since
it has the digests of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, StorageError, TargetExistsError
from reshard.formats.contents import Leaf, StoredTensor
from reshard.formats.slices.file_digests import digest_of_file
from reshard.formats.slices.parse import parse_slices, read_slices
from reshard.formats.slices.slice_file import (
    FILE_NAME,
    PARTIAL_NAME,
    SliceEntry,
    SliceFile,
    digest_of,
    render_slices,
    split_of,
)
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location


class TensorTree(Struct, frozen=True):
    """The tensors of one tree, and its leaves."""

    leaves: Sequence[Leaf]
    tensors: Mapping[str, StoredTensor]


class RecordedFolder(Struct, frozen=True):
    """A folder that gets a slices.json.

    Attributes:
        folder: below the checkpoint; "" for itself.
        tree: the tree in this folder; None for the top of a checkpoint of several items.
        files: every other file that is recorded, by its path in the folder.
        data_files: those of ``files`` that contain tensors; None if the record is not of every file.
    """

    folder: str
    tree: TensorTree | None
    files: tuple[str, ...]
    data_files: frozenset[str] | None = frozenset()


def refuse_recorded(root: Location, folders: Sequence[RecordedFolder]) -> None:
    """Raises TargetExistsError if something was recorded already."""
    paths = [root / folder.folder / FILE_NAME for folder in folders]
    for path in (path for path in paths if path.exists()):
        raise TargetExistsError(
            f"{str(path)!r} is there already and was left untouched; reshard verify "
            "compares the checkpoint with it; ask to overwrite it (overwrite) to record what is stored now"
        )


def refuse_item_of_record(root: Location) -> None:
    """Raises TargetExistsError for an item whose checkpoint has a record of it, which would become wrong."""
    above = None
    with suppress(FormatError, StorageError):  # a record that cannot be read is wrong already
        above = read_slices(root.parent)
    if above is not None and f"{root.name}/{FILE_NAME}" in above.files:
        raise TargetExistsError(
            f"{str(root)!r} is an item of {str(root.parent)!r}, whose {FILE_NAME} has the digest of the item's own {FILE_NAME}, "
            "and was left untouched; record the whole checkpoint anew"
        )


@contextmanager
def room_for_records(root: Location, folders: Sequence[RecordedFolder]) -> Iterator[None]:
    """Refuses folders that cannot be written to, before everything is read.

    Raises StorageError. Its partial files are removed at the end.
    """
    partial = [root / folder.folder / PARTIAL_NAME for folder in folders]
    try:
        for path in partial:
            path.write(b"")
        yield
    finally:
        for path in partial:
            with suppress(StorageError):
                path.remove()


def publish_records(
    root: Location,
    folders: Sequence[RecordedFolder],
    digests: Mapping[str, str],
    read: Callable[[str], None],
) -> list[Location]:
    """Digest the files and write each slices.json; returns the paths written.

    Args:
        digests: of every tensor, by name.
        read: called with each file's path before it is read.
    """
    made: dict[str, bytes] = {}
    for folder in folders:
        file = _record(root, folder, digests, _earlier(root / folder.folder), read)
        if folder.tree is None:
            items = {path: digest_of(data) for path, data in made.items()}
            file = replace(file, files={**file.files, **items})
        path = f"{folder.folder}/{FILE_NAME}" if folder.folder else FILE_NAME
        made[path] = render_slices(file)
        parse_slices(made[path], str(root / path))  # refuses a file that no reader could open
    for path, data in made.items():
        (root / path).replace(data)
    return [root / path for path in made]


def _earlier(folder: Location) -> SliceFile | None:
    """The record that is there already, unless it is damaged."""
    with suppress(FormatError, StorageError):
        return read_slices(folder)
    return None


def _record(
    root: Location,
    folder: RecordedFolder,
    digests: Mapping[str, str],
    earlier: SliceFile | None,
    read: Callable[[str], None],
) -> SliceFile:
    top = root / folder.folder
    files = {}
    for name in folder.files:
        read(f"{folder.folder}/{name}" if folder.folder else name)
        files[name] = digest_of_file(top / name)
    data_files = None
    if folder.data_files is not None:
        data_files = {n: d for n, d in files.items() if n in folder.data_files}
        files = {n: d for n, d in files.items() if n not in data_files}
    if folder.tree is None:
        return _with_history(SliceFile({}, files, data_files), earlier)
    known = earlier.tensors if earlier is not None else {}
    entries = dict(_entries(folder.tree, digests, known))
    return _with_history(SliceFile(entries, files, data_files), earlier)


def _with_history(file: SliceFile, earlier: SliceFile | None) -> SliceFile:
    """Keeps from an earlier record the form of names, the source of the checkpoint, and texts that only it has."""
    if earlier is None:
        return file
    return replace(
        file, item_names=earlier.item_names, made=earlier.made, metadata=earlier.metadata
    )


def _entries(
    tree: TensorTree, digests: Mapping[str, str], known: Mapping[str, SliceEntry]
) -> Iterator[tuple[str, SliceEntry]]:
    """One entry for each tensor; slices in an earlier record are kept."""
    for leaf in tree.leaves:
        if leaf.tensor:
            path = tuple(step.key for step in leaf.path)
            entry = _entry(path, tree.tensors[leaf.name].spec, known.get("/".join(path)))
            yield entry.name, replace(entry, digest=digests[leaf.name])


def _entry(path: tuple[str, ...], spec: TensorSpec, known: SliceEntry | None) -> SliceEntry:
    if known is not None and (known.dtype, known.shape) == (spec.dtype, spec.shape):
        return known
    layout = spec.layout if spec.layout and spec.layout.device_mesh else None
    split = split_of(spec.slices if layout else Grid.whole(spec.shape))
    parts, cuts = split.get("parts"), split.get("cuts")
    return SliceEntry(path, spec.dtype, spec.shape, layout, parts, cuts)
