"""Makes and writes the slices.json files that a checkpoint lacks.

Each file is synced and appears by one rename; nothing else in the checkpoint changes. The top one comes last, since
it has the digests of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, StorageError, TargetExistsError
from reshard.formats.ocdbt.index import find_databases
from reshard.formats.orbax.chunk_files import ChunkFiles
from reshard.formats.orbax.folder_record import folder_records, is_data_file
from reshard.formats.orbax.item_tensors import OpenItem
from reshard.formats.orbax.reader import OrbaxReader
from reshard.formats.slices.file_digests import digest_of_file, files_below
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
from reshard.storage.local import storage_errors, write_file
from reshard.storage.syncing import fsync


class RecordedFolder(Struct, frozen=True):
    """A folder that gets a slices.json.

    Attributes:
        folder: below the checkpoint; "" for itself.
        item: the tree in this folder; None for the top of a checkpoint of several items.
        files: every other file that is recorded, by its path in the folder.
    """

    folder: str
    item: OpenItem | None
    files: tuple[str, ...]


def refuse_recorded(root: Path) -> None:
    """Raises TargetExistsError if something was recorded already."""
    for record in folder_records(root):
        raise TargetExistsError(
            f"{str(root / record.folder / FILE_NAME)!r} is there already and was left untouched; reshard verify "
            "compares the checkpoint with it; ask to overwrite it (overwrite) to record what is stored now"
        )


def refuse_item_of_record(root: Path) -> None:
    """Raises TargetExistsError for an item whose checkpoint has a record of it, which would become wrong."""
    above = None
    with suppress(FormatError, StorageError):  # a record that cannot be read is wrong already
        above = read_slices(root.parent)
    if above is not None and f"{root.name}/{FILE_NAME}" in above.files:
        raise TargetExistsError(
            f"{str(root)!r} is an item of {str(root.parent)!r}, whose {FILE_NAME} has the digest of the item's own {FILE_NAME}, "
            "and was left untouched; record the whole checkpoint anew"
        )


def folders_to_record(root: Path, reader: OrbaxReader) -> list[RecordedFolder]:
    """The folders and the files to record in each, the top last."""
    chunks = reader.chunk_files
    items = [
        RecordedFolder(i.item.directory, i, tuple(_item_files(root, i, chunks)))
        for i in reader.opened.values()
    ]
    folders = frozenset(item.folder for item in items)
    if "" in folders:
        return items
    others = [n for n in files_below(root, folders) if n not in (FILE_NAME, PARTIAL_NAME)]
    return [*items, RecordedFolder("", None, tuple(others))]


def _item_files(root: Path, item: OpenItem, chunks: ChunkFiles) -> Iterator[str]:
    folder = item.item.directory
    for name in files_below(root / folder):
        path = f"{folder}/{name}" if folder else name
        if name not in (FILE_NAME, PARTIAL_NAME) and path not in chunks:
            yield name


@contextmanager
def room_for_records(root: Path, folders: Sequence[RecordedFolder]) -> Iterator[None]:
    """Refuses folders that cannot be written to, before everything is read.

    Raises StorageError. Its partial files are removed at the end.
    """
    partial = [root / folder.folder / PARTIAL_NAME for folder in folders]
    try:
        for path in partial:
            write_file(str(path), b"")
        yield
    finally:
        for path in partial:
            with suppress(OSError):
                path.unlink()


def publish_records(
    root: Path,
    folders: Sequence[RecordedFolder],
    digests: Mapping[str, str],
    read: Callable[[str], None],
) -> list[Path]:
    """Digest the files and write each slices.json; returns the paths written.

    Args:
        digests: of every tensor, by name.
        read: called with each file's path before it is read.
    """
    earlier = {r.folder: r.file for r in folder_records(root) if r.file is not None}
    made: dict[str, bytes] = {}
    for folder in folders:
        file = _record(root, folder, digests, earlier.get(folder.folder), read)
        if folder.item is None:
            items = {path: digest_of(data) for path, data in made.items()}
            file = replace(file, files={**file.files, **items})
        path = f"{folder.folder}/{FILE_NAME}" if folder.folder else FILE_NAME
        made[path] = render_slices(file)
        parse_slices(made[path], root / path)  # refuses a file that no reader could open
    for path, data in made.items():
        _publish(root / path, data)
    return [root / path for path in made]


def _record(
    root: Path,
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
    if folder.item is None:
        return _with_history(SliceFile({}, files, {}), earlier)
    in_database = is_data_file if find_databases(top) else lambda _: False
    data_files = {n: d for n, d in files.items() if in_database(n)}
    files = {n: d for n, d in files.items() if n not in data_files}
    known = earlier.tensors if earlier is not None else {}
    entries = dict(_entries(folder.item, digests, known))
    return _with_history(SliceFile(entries, files, data_files), earlier)


def _with_history(file: SliceFile, earlier: SliceFile | None) -> SliceFile:
    """Keeps from an earlier record how names are formed and which source the checkpoint was made of."""
    if earlier is None:
        return file
    return replace(file, item_names=earlier.item_names, made=earlier.made)


def _entries(
    item: OpenItem, digests: Mapping[str, str], known: Mapping[str, SliceEntry]
) -> Iterator[tuple[str, SliceEntry]]:
    """One entry for each tensor; slices in an earlier record are kept."""
    for leaf in item.leaves:
        if leaf.tensor:
            path = tuple(step.key for step in leaf.path)
            entry = _entry(path, item.tensors[leaf.name].spec, known.get("/".join(path)))
            yield entry.name, replace(entry, digest=digests[leaf.name])


def _entry(path: tuple[str, ...], spec: TensorSpec, known: SliceEntry | None) -> SliceEntry:
    if known is not None and (known.dtype, known.shape) == (spec.dtype, spec.shape):
        return known
    layout = spec.layout if spec.layout and spec.layout.device_mesh else None
    split = split_of(spec.slices if layout else Grid.whole(spec.shape))
    parts, cuts = split.get("parts"), split.get("cuts")
    return SliceEntry(path, spec.dtype, spec.shape, layout, parts, cuts)


def _publish(path: Path, data: bytes) -> None:
    partial = path.with_name(PARTIAL_NAME)
    write_file(str(partial), data)
    fsync(partial)
    with storage_errors("publish", path):
        partial.replace(path)
    fsync(path.parent)
