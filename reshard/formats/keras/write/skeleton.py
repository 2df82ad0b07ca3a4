"""An HDF5 file without its elements: the metadata, made by h5py, and the offset of each dataset.

All metadata comes first and the elements of the datasets follow without gaps: each gets its room by one element that is written once
everything else is there. h5py writes into a Python file object that keeps the metadata and forgets elements, so a file of any size
takes no more memory than its metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import SEEK_CUR, SEEK_END, RawIOBase
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.errors import FormatError
from reshard.formats.keras.datasets import Dataset
from reshard.formats.keras.dtypes import ATTRIBUTE, OPAQUE, attribute_of, hdf5_type
from reshard.formats.keras.hdf5 import require_h5py

if TYPE_CHECKING:
    import h5py
    from h5py.h5d import DatasetID


class Skeleton(Struct, frozen=True):
    """The metadata of a file, and the datasets whose elements follow it.

    Attributes:
        head: every byte before the elements.
        offsets: of the first element of each dataset, by name; none for a dataset without elements.
        nbytes: of the whole file.
    """

    head: bytes
    offsets: dict[str, int]
    nbytes: int


def hdf5_skeleton(datasets: Sequence[Dataset]) -> Skeleton:
    """The file of the datasets, in that order; their names differ, and none is a group of another.

    The same datasets always give the same bytes. Raises MissingPackageError without h5py.
    """
    require_h5py()
    import h5py

    content = _Metadata()
    with h5py.File(content, "w", libver="earliest") as file:
        made = [(one, _made(file, one)) for one in datasets]
        file.flush()
        head_bytes = content.ends_at()
        for one, dataset in made:
            if one.nbytes:
                _give_room(dataset)
        offsets = {one.name: dataset.get_offset() for one, dataset in made if one.nbytes}
    _check(datasets, offsets, head_bytes, content.nbytes)
    return Skeleton(content.beginning(head_bytes), offsets, content.nbytes)


def _made(file: h5py.File, dataset: Dataset) -> DatasetID:
    import h5py
    from h5py import h5d, h5p, h5s

    made = h5p.create(h5p.DATASET_CREATE)
    made.set_layout(h5d.CONTIGUOUS)
    made.set_alloc_time(h5d.ALLOC_TIME_LATE)
    made.set_fill_time(h5d.FILL_TIME_NEVER)
    made.set_obj_track_times(False)
    shape = dataset.shape
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    folder, _, name = dataset.name.rpartition("/")
    group = file.require_group(folder) if folder else file["/"]
    found = h5d.create(group.id, name.encode(), hdf5_type(dataset.dtype), space, made)
    if dataset.dtype in OPAQUE:
        h5py.Dataset(found).attrs[ATTRIBUTE] = attribute_of(dataset.dtype)
    return found


def _give_room(dataset: DatasetID) -> None:
    """Has HDF5 allocate the elements, behind everything that is there."""
    import numpy as np
    from h5py import h5s

    one, place = h5s.create(h5s.SCALAR), dataset.get_space()
    if place.get_simple_extent_ndims():
        place.select_elements(np.zeros((1, place.get_simple_extent_ndims()), np.uint64))
    kind = dataset.get_type()
    dataset.write(one, place, np.zeros((), f"V{kind.get_size()}"), mtype=kind)


def _check(
    datasets: Sequence[Dataset], offsets: dict[str, int], head_bytes: int, nbytes: int
) -> None:
    """Raises FormatError unless the elements of the datasets follow the head, without gaps, up to the end."""
    at = head_bytes
    for one in datasets:
        if one.nbytes:
            if offsets[one.name] != at:
                break
            at += one.nbytes
    else:
        if at == nbytes:
            return
    raise FormatError(
        f"HDF5 places datasets in another way than is known, at byte {at:,}; this is a defect of the program, please report it"
    )


class _Metadata(RawIOBase):
    """A file object that keeps the bytes written until ``ends_at`` is called, and behind that only the size."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._at = 0
        self._kept = bytearray()
        self._end: int | None = None

    def ends_at(self) -> int:
        """The size so far, behind which nothing is kept."""
        self._end = self.nbytes
        return self.nbytes

    def beginning(self, nbytes: int) -> bytes:
        """The first bytes."""
        kept = bytes(self._kept[:nbytes])
        return kept + bytes(nbytes - len(kept))

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = {SEEK_CUR: self._at, SEEK_END: self.nbytes}.get(whence, 0) + offset
        return self._at

    def write(self, data: memoryview) -> int:  # type: ignore[override]  # h5py gives a memoryview
        view = memoryview(data).cast("B")
        end = self._at + len(view)
        kept_end = end if self._end is None else min(end, self._end)
        if kept_end > self._at:
            self._kept.extend(bytes(max(0, kept_end - len(self._kept))))
            self._kept[self._at : kept_end] = view[: kept_end - self._at]
        self.nbytes = max(self.nbytes, end)
        self._at = end
        return len(view)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # h5py gives a memoryview
        out = memoryview(buffer).cast("B")
        part = bytes(self._kept[self._at : self._at + len(out)])
        out[:] = part + bytes(len(out) - len(part))
        self._at += len(out)
        return len(out)

    def truncate(self, size: int | None = None) -> int:
        self.nbytes = self._at if size is None else size
        return self.nbytes
