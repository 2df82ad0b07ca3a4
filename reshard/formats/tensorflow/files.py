"""The files of a checkpoint of TensorFlow: an index and data files, which begin with its name."""

from __future__ import annotations

import re

from msgspec import Struct

from reshard.errors import CorruptError, MissingError
from reshard.storage.base import FileStatus
from reshard.storage.location import Location

INDEX = ".index"

_DATA = re.compile(r"\.data-[0-9]{5}-of-[0-9]{5}")


def index_of(root: Location) -> Location:
    """The index of a checkpoint that a prefix names."""
    return root.parent / f"{root.name}{INDEX}"


def data_name(root: Location, number: int, count: int) -> str:
    """The name of a data file, of which there are ``count``, counted from 0."""
    return f"{root.name}.data-{number:05d}-of-{count:05d}"


def bundle_files(root: Location) -> tuple[Location, ...] | None:
    """The index and the data files of a prefix; None where no index is there, or something has the prefix as its name."""
    if not root.name or not index_of(root).is_file() or root.exists():
        return None
    found = (entry.name for entry in root.parent.entries() if entry.name.startswith(root.name))
    data = sorted(name for name in found if _DATA.fullmatch(name[len(root.name) :]))
    return (index_of(root), *(root.parent / name for name in data))


class DataFile(Struct, frozen=True):
    """A data file: where it is, and what is known of it."""

    path: str
    found: FileStatus


def data_files(root: Location, count: int) -> tuple[DataFile, ...]:
    """The data files in the order of their numbers. Raises MissingError for one that is not there."""
    files = []
    for number in range(count):
        file = root.parent / data_name(root, number, count)
        found = file.status()
        if found is None:
            raise MissingError(
                f"{file} is missing; {index_of(root)} counts {count} data files; copy it there, or restore the checkpoint from a copy"
            )
        if found.kind != "file":
            raise CorruptError(f"{file} is no file; restore the checkpoint from a copy")
        files.append(DataFile(str(file), found))
    return tuple(files)
