"""The file of a Keras target, whose metadata is known before the first byte, so that any worker writes any chunk.

The record is the first dataset, with zeros for digests until they are known; then the tensors follow in the order of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.file_map import ChunkChecksum, FileMap, Place, SharedFile
from reshard.formats.keras.datasets import Dataset
from reshard.formats.keras.files import ONLY_FILE
from reshard.formats.keras.reader import NAME
from reshard.formats.keras.write.skeleton import hdf5_skeleton
from reshard.formats.leaf_paths import refuse_long
from reshard.formats.slice_places import SlicePlaces
from reshard.formats.slices.slice_file import target_record
from reshard.geometry.grid import Grid, Index
from reshard.storage.location import Location

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
        skeleton = hdf5_skeleton([Dataset(NAME, "uint8", (len(record),), None), *_datasets(target)])
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


def _datasets(target: TargetCheckpoint) -> Iterator[Dataset]:
    for name, tensor in target.tensors.items():
        yield Dataset(name, tensor.spec.dtype, tensor.spec.shape, None)


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
