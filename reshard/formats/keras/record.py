"""What this project records in an HDF5 file: the text that is ``slices.json`` in a folder, as a dataset of that name.

It is an array of bytes at the top of the file. Keras loads by name, and does not look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from reshard.errors import FormatError
from reshard.formats.base import Record
from reshard.formats.keras.datasets import Dataset
from reshard.formats.limits import MAX_JSON_BYTES
from reshard.formats.slices.described import recorded
from reshard.formats.slices.parse import parse_slices
from reshard.formats.slices.slice_file import FILE_NAME, SliceFile
from reshard.storage.location import Location

NAME = FILE_NAME


def is_record(dataset: Dataset) -> bool:
    """Whether a dataset is the record, and no tensor."""
    return dataset.name == NAME and dataset.dtype == "uint8" and len(dataset.shape) == 1


def read_record(
    datasets: Sequence[Dataset], file: Location, version: str, record: Record
) -> SliceFile:
    """What was recorded in a file; an empty record where there is none, or none is wanted.

    Raises CorruptError for one that is damaged, where it is to be checked.
    """
    found = next(filter(is_record, datasets), None)

    def read() -> SliceFile | None:
        if found is None:
            return None
        if found.offset is None or found.nbytes > MAX_JSON_BYTES:
            raise FormatError(f"{file}: {NAME!r} has {found.nbytes:,} bytes, which is no record")
        with closing(file.open(version)) as opened:
            return parse_slices(opened.read(found.offset, found.nbytes), f"{NAME} in {file}")

    return recorded(read, record)
