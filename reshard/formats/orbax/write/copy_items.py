"""Copying an item that is not a tree (JSON, a dataset iterator's state, ...) unchanged, file by file."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.orbax.write.item_tree import item_directory
from reshard.formats.slices.file_digests import REMEDY, check_digest, digests_of_files, files_below
from reshard.formats.slices.parse import read_slices
from reshard.geometry.sizes import format_bytes
from reshard.storage.host import free_bytes
from reshard.storage.local import reason_and_remedy


def copy_items(target: TargetCheckpoint, root: Path) -> None:
    """Copy each item that is not a tree to its folder below the root."""
    for item in target.container.items:
        if not item.is_tree and item.name in target.copied:
            folder = root / item_directory(target.container, item)
            copy_item(target.copied[item.name], folder, item.name)
            _check_copied(target.copied[item.name], folder, item.name)


def _check_copied(source: Path, folder: Path, item: str) -> None:
    """Raises CorruptError if the source has a record and the copy differs from it."""
    record = read_slices(source.parent)
    if record is None or record.data_files is None:
        return
    top = f"{source.name}/"
    recorded = {n.removeprefix(top): d for n, d in record.files.items() if n.startswith(top)}
    found = digests_of_files(folder, files_below(folder))
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


def copy_item(source: Path, target: Path, name: str) -> None:
    """Copy a folder without syncing; running it again gives the same result.

    A link to a file inside the folder is copied as that file. Raises FormatError if a link leads out of the folder or
    to a folder, or if an entry is neither file nor folder; StorageError if the file system refuses.
    """
    try:
        top = source.resolve(strict=True)
        _refuse_without_space(top, target, name)
        _copy_folder(source, target, top, name)
    except RuntimeError as error:
        raise FormatError(
            f"item {name!r} in {source} contains a symbolic link that leads to itself; remove it"
        ) from error
    except OSError as error:
        place = error.filename2 or error.filename or source
        raise StorageError(
            f"cannot copy item {name!r} from {source} to {target}: {str(place)!r}: {reason_and_remedy(error)}"
        ) from error


def _refuse_without_space(source: Path, target: Path, name: str) -> None:
    """Compares the size of the files with the free space; a sparse file takes little space, but its copy does not."""
    need = sum(
        os.lstat(f"{folder}/{n}").st_size for folder, _, names in os.walk(source) for n in names
    )
    free = free_bytes(target)
    if need > free:
        raise StorageError(
            f"item {name!r} in {source} contains files of {format_bytes(need)}, but the file system of {target} has "
            f"only {format_bytes(free)} free; free space, or choose another target"
        )


def _copy_folder(source: Path, target: Path, top: Path, name: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        _copy_entry(entry, target / entry.name, top, name)


def _copy_entry(entry: Path, target: Path, top: Path, name: str) -> None:
    real = _follow(entry, top, name) if entry.is_symlink() else entry
    mode = real.lstat().st_mode
    if stat.S_ISDIR(mode):
        _copy_folder(real, target, top, name)
    elif stat.S_ISREG(mode):
        shutil.copyfile(real, target)
    else:
        raise FormatError(
            f"item {name!r} contains {entry}, which is neither a file nor a folder and cannot be "
            f"copied; remove it from the source"
        )


def _follow(link: Path, top: Path, name: str) -> Path:
    real = link.resolve(strict=True)
    if not real.is_relative_to(top) or not real.is_file():
        raise FormatError(
            f"item {name!r} contains the symbolic link {link}, which leads to no file inside the item; "
            f"links that lead elsewhere are not followed, so replace it by the file that it points to"
        )
    return real
