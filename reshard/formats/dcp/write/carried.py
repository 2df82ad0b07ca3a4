"""Values that are not read, as they travel from one distributed checkpoint to another: the archive of each, byte for byte."""

from __future__ import annotations

from contextlib import closing

from reshard.formats.contents import Carried
from reshard.formats.limits import MAX_ARCHIVE_RECORDS, MAX_DIRECTORY_BYTES
from reshard.formats.torch.archive import Most, open_archive
from reshard.storage.location import open_file


def carried_archive(carried: Carried, name: str) -> bytes:
    """The archive of the value of this name.

    Raises CorruptError where a record of it does not have its CRC-32: the copy would look whole.
    """
    (part,) = carried.parts
    extent = part.extent
    where = f"{extent.path}: the value {name!r}"
    with closing(open_file(extent.path, extent.version)) as file:
        data = file.read(extent.offset, extent.length)

    def read(offset: int, nbytes: int) -> bytes:
        return data[offset : offset + nbytes]  # within it: the archive's directory is checked

    most = Most(MAX_ARCHIVE_RECORDS, MAX_DIRECTORY_BYTES, len(data))
    archive = open_archive(read, len(data), where, most)
    for record in archive.records:
        archive.small(record)
    return data
