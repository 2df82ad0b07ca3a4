"""The file of a Keras target.

All metadata comes first and the elements of the datasets follow without gaps: each gets its room by one element that is written once
everything else is there. h5py writes into a Python file object that keeps the metadata and forgets elements, so a file of any size
takes no more memory than its metadata.

The metadata is known before the first byte, so that any worker writes any chunk.
The record is the first dataset, with zeros for digests until they are known; then the tensors follow in the order of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import SEEK_CUR, SEEK_END, RawIOBase
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.errors import FormatError, PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.file_map import ChunkChecksum, FileMap, Place, SharedFile
from reshard.formats.keras.datasets import ATTRIBUTE, OPAQUE, Dataset, attribute_of, hdf5_type
from reshard.formats.keras.files import ONLY_FILE, require_h5py
from reshard.formats.keras.reader import NAME
from reshard.formats.leaf_paths import refuse_long
from reshard.formats.loose_pieces import SlicePlaces
from reshard.formats.slices.slice_file import target_record
from reshard.geometry.grid import Grid, Index
from reshard.storage.location import Location

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


_NO_DIGEST = "0" * 16
"""In place of the digits of a digest that is not known yet."""


def plan_files(target: TargetCheckpoint) -> FileMap:
    """The file of a Keras target; nothing is written yet.

    Raises PlanError for names that HDF5 does not allow, MissingPackageError without h5py.
    """
    planned = _Planned(target)
    return FileMap(
        places=planned.places,
        finish=planned.finish,
        names=lambda: [ONLY_FILE],
        shared=(ONLY_FILE,),
        shared_file=planned.shared_file,
    )


class _Planned:
    """The plan from which the file follows; it never changes."""

    def __init__(self, target: TargetCheckpoint) -> None:
        _check_names(target.tensors)
        self._target = target
        record = self._record({})
        specs = ((name, tensor.spec) for name, tensor in target.tensors.items())
        tensors = (Dataset(name, spec.dtype, spec.shape, None) for name, spec in specs)
        skeleton = hdf5_skeleton([Dataset(NAME, "uint8", (len(record),), None), *tensors])
        self._metadata, self._nbytes = skeleton.head, skeleton.nbytes
        self._stored = {
            name: SlicePlaces(
                tensor,
                Grid.whole(tensor.spec.shape),
                {(0,) * len(tensor.spec.shape): (Place(ONLY_FILE, skeleton.offsets[name]),)},
            )
            for name, tensor in target.tensors.items()
            if tensor.spec.nbytes
        }

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        """The part of the file that has the chunk."""
        return self._stored[name].places(index)

    def shared_file(self, _: str) -> SharedFile:
        """The file, with the record before digests are known."""
        return SharedFile(self._metadata + self._record({}), self._nbytes)

    def finish(
        self,
        root: Location,
        digests: Mapping[str, str],
        _: Iterable[ChunkChecksum],  # the format stores none
    ) -> Mapping[str, bytes]:
        """Writes the record with the digests of the tensors."""
        head = self._metadata + self._record(digests)
        (root / ONLY_FILE).write_ranges([(0, head)], self._nbytes)
        return {}

    def _record(self, digests: Mapping[str, str]) -> bytes:
        """The text of the record, always as long."""
        return target_record(self._target, digests, missing=_NO_DIGEST)


def _check_names(names: Iterable[str]) -> None:
    """Raises PlanError for a name that is no path in HDF5, or that goes through another tensor."""
    known = {NAME, *names}
    if NAME in set(names):
        raise PlanError(
            f"a tensor has the name {NAME!r}, which the record has in Keras files; rename it (rename)"
        )
    for name in sorted(known):
        keys = name.split("/")
        if any(key in ("", ".") or "\0" in key for key in keys):
            raise PlanError(
                f"the name {name!r} is no path in an HDF5 file: between slashes there must be something other than '.'; rename it (rename)"
            )
        refuse_long(name)
        above = next((up for n in range(1, len(keys)) if (up := "/".join(keys[:n])) in known), None)
        if above is not None:
            raise PlanError(
                f"{above!r} and {name!r} cannot both be tensors of an HDF5 file, in which {above!r} would be a group; rename one of them "
                "(rename)"
            )
