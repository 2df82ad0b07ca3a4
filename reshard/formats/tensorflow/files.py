"""The files of a checkpoint of TensorFlow: an index and data files, which begin with its name."""

from __future__ import annotations

import re
from contextlib import closing

from msgspec import Struct

from reshard.errors import CorruptError, MissingError
from reshard.formats.format import PlaceNames
from reshard.formats.marks import TENSORFLOW_INDEX, is_bundle
from reshard.formats.tensorflow.table import MAGIC
from reshard.storage.base import FileStatus
from reshard.storage.location import Location

FORMAT = "tensorflow"
RECORD = ".slices.json"
"""The record of this project beside an index; see ``formats/slices``."""

_DATA = re.compile(r"\.data-[0-9]{5}-of-[0-9]{5}\Z")


def index_of(root: Location) -> Location:
    """The index of a checkpoint that a prefix names."""
    return root.parent / f"{root.name}{TENSORFLOW_INDEX}"


def data_ending(number: int, count: int) -> str:
    """The ending of the name of a data file, behind the prefix; ``number`` counts the ``count`` files from 0."""
    return f".data-{number:05d}-of-{count:05d}"


def prefixes_in(folder: Location) -> list[str]:
    """The names of the checkpoints whose files are in a folder, in order."""
    names = {entry.name for entry in folder.entries() if not entry.is_folder}
    found = {prefix_of(name) for name in names if name.endswith(TENSORFLOW_INDEX)} - {""}
    return sorted(one for one in found if any(name.startswith(f"{one}.data-") for name in names))


def prefix_of(name: str) -> str:
    """The name of the checkpoint that a file belongs to, by the file's name; "" for another file.

    >>> prefix_of("ckpt-7.data-00000-of-00002"), prefix_of("ckpt-7.index"), prefix_of("README")
    ('ckpt-7', 'ckpt-7', '')
    """
    if name.endswith(TENSORFLOW_INDEX):
        return name.removesuffix(TENSORFLOW_INDEX)
    found = _DATA.search(name)
    return "" if found is None else name[: found.start()]


def bundle_files(names: PlaceNames) -> tuple[Location, ...] | None:
    """The index and the data files of a prefix; None where no index is there, or something has the prefix as its name.

    An index is one of TensorFlow if data files are beside it, or if it ends as one: other programs have files of that name.
    """
    found = names.index if is_bundle(names) else None
    if found is None:
        return None
    index, prefix = index_of(names.root), names.name
    begun = (name for name in names.beside if name.startswith(prefix))
    data = sorted(name for name in begun if _DATA.fullmatch(name[len(prefix) :]))
    if not data and not _ends_as_table(index, found):
        return None
    return (index, *(names.root.parent / name for name in data))


def _ends_as_table(index: Location, found: FileStatus) -> bool:
    with closing(index.open(found.version)) as file:
        return file.read(max(0, found.nbytes - len(MAGIC)), len(MAGIC)) == MAGIC


def prefix_text(root: Location) -> str:
    """A hint for a path that names no checkpoint: it is a file of one of TensorFlow, or files of one are missing; "" for neither."""
    if root.is_file():
        prefix = prefix_of(root.name)
        if prefix and bundle_files(PlaceNames(root.parent / prefix)):
            return f"it is a file of a checkpoint of TensorFlow, which its prefix names: {root.parent / prefix}"
        return ""
    if root.is_folder():
        name = _without_index(root)
        index = _without_data(root) if not name else ""
        if index:
            return f"{index!r} is an index of TensorFlow without its data files ({prefix_of(index)}.data-00000-of-…); copy them there"
    else:
        name = _without_index(root.parent, root.name) if root.parent.is_folder() else ""
    if not name:
        return ""
    index = prefix_of(name) + TENSORFLOW_INDEX
    return f"{name!r} is there without {index!r}, which TensorFlow writes last; the save did not finish, or the file was not copied"


def _without_index(folder: Location, wanted: str | None = None) -> str:
    """The first data file in a folder, of the wanted prefix or of any, whose index is not there; "" for none."""
    names = {entry.name for entry in folder.entries()}
    for name in sorted(names):
        prefix = prefix_of(name)
        if prefix and f"{prefix}{TENSORFLOW_INDEX}" not in names and wanted in (None, prefix):
            return name
    return ""


def _without_data(folder: Location) -> str:
    """The first index of TensorFlow in a folder without its data files; "" for none."""
    names = [entry.name for entry in folder.entries() if not entry.is_folder]
    for name in sorted(names):
        prefix = prefix_of(name)
        if name == f"{prefix}{TENSORFLOW_INDEX}" and not any(
            one.startswith(f"{prefix}.data-") for one in names
        ):
            found = (folder / name).status()
            if found is not None and _ends_as_table(folder / name, found):
                return name
    return ""


class DataFile(Struct, frozen=True):
    """A data file: its path and its status."""

    path: str
    found: FileStatus


def data_files(root: Location, count: int) -> tuple[DataFile, ...]:
    """The data files in the order of their numbers. Raises MissingError for one that is not there."""
    files = []
    for number in range(count):
        file = root.parent / f"{root.name}{data_ending(number, count)}"
        found = file.status()
        if found is None:
            raise MissingError(
                f"{file} is missing; {index_of(root)} counts {count} data files; copy it there, or restore the checkpoint from a copy"
            )
        if found.kind != "file":
            raise CorruptError(f"{file} is no file; restore the checkpoint from a copy")
        files.append(DataFile(str(file), found))
    return tuple(files)
