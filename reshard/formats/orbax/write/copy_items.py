"""Copying an item that is not a tree (JSON, a dataset iterator's state, ...) unchanged, file by file."""

from __future__ import annotations

from collections.abc import Iterator

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.orbax.write.item_tree import item_directory
from reshard.formats.slices.file_digests import REMEDY, check_digest, digests_of_files, files_below
from reshard.formats.slices.parse import read_slices
from reshard.geometry.sizes import format_bytes
from reshard.storage.base import FileStatus
from reshard.storage.commit_markers import COMMIT_MARKER
from reshard.storage.copying import copy_file
from reshard.storage.local.target_checks import refuse_folded
from reshard.storage.location import Location, locate


def copy_items(target: TargetCheckpoint, root: Location) -> None:
    """Copy each item that is not a tree to its folder below the root."""
    for item in target.container.items:
        if not item.is_tree and item.name in target.copied:
            folder = root / item_directory(target.container, item)
            source = locate(target.copied[item.name])
            copy_item(source, folder, item.name)
            _check_copied(source, folder, item.name)


def _check_copied(source: Location, copy: Location, item: str) -> None:
    """Raises CorruptError if the source has a record and the copy differs from it."""
    record = read_slices(source.parent)
    if record is None or record.data_files is None:
        return
    top = f"{source.name}/"
    recorded = {n.removeprefix(top): d for n, d in record.files.items() if n.startswith(top)}
    found = digests_of_files(copy, files_below(copy))
    for name in sorted(recorded.keys() | found.keys()):
        what = f"item {item!r}: the file {source / name}"
        if name not in found:
            raise CorruptError(f"{what} is missing, but is recorded in slices.json; {REMEDY}")
        if name not in recorded:
            raise CorruptError(f"{what} is not recorded in slices.json; remove it, or {REMEDY}")
        check_digest(found[name], recorded[name], what)


def copied_folders(target: TargetCheckpoint) -> list[str]:
    """The folders below the root of the items that are not trees."""
    return [
        item_directory(target.container, item)
        for item in target.container.items
        if not item.is_tree and item.name in target.copied
    ]


def copy_item(source: Location, target: Location, name: str) -> None:
    """Copy a folder without syncing, its marker last; running it again gives the same result.

    A link to a file inside the folder is copied as that file. Raises FormatError if a link leads out of the folder or
    to a folder, or if an entry is neither file nor folder; StorageError if a store refuses.
    """
    what = f"item {name!r}"
    if not source.is_folder():
        raise StorageError(
            f"{what} was at {source} when the checkpoint was opened and is gone now; keep the checkpoint until it is read, "
            "then run again"
        )
    folder = source.view()
    found = dict(_found(folder, "", what))
    _refuse_without_space(found, source, target, what)
    target.make_folder()
    refuse_folded(target, found)
    for path in sorted(found, key=COMMIT_MARKER.__eq__):
        status = found[path]
        if status.kind == "folder":
            (target / path).make_folder()
        else:
            copy_file(folder / path, target / path, status, what)


def _refuse_without_space(
    found: dict[str, FileStatus], source: Location, target: Location, what: str
) -> None:
    """Compares the size of the files with the free space; a sparse file takes little space, but its copy does not."""
    need = sum(status.nbytes for status in found.values())
    free = target.free_bytes()
    if free is not None and need > free:
        raise StorageError(
            f"{what} in {source} contains files of {format_bytes(need)}, but the file system of {target} has "
            f"only {format_bytes(free)} free; free space, or choose another target"
        )


def _found(folder: Location, below: str, what: str) -> Iterator[tuple[str, FileStatus]]:
    """Every folder and file below a folder, by path; a folder before its content."""
    for entry in (folder / below).entries():
        path = f"{below}/{entry.name}" if below else entry.name
        status = (folder / path).status(what)
        if entry.is_link and (status is None or status.kind != "file"):
            raise FormatError(
                f"{what} contains the symbolic link {folder / path}, which leads to no file inside the item; "
                f"replace it by the file that it points to"
            )
        if status is None or status.kind == "other":
            raise FormatError(
                f"{what} contains {folder / path}, which is neither a file nor a folder and cannot be "
                f"copied; remove it from the source"
            )
        yield path, status
        if status.kind == "folder":
            yield from _found(folder, path, what)
