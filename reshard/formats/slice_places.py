"""The slices of a tensor that lie contiguously in shared files, and the places of its chunks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import TargetTensor
from reshard.formats.chunking import contiguous_grid
from reshard.formats.contents import StoredTensor
from reshard.formats.encoding import Encoding
from reshard.formats.file_map import Place
from reshard.geometry.grid import Grid, Index


class SlicePlaces(Struct, frozen=True):
    """The slices of a tensor of a target, row-major each.

    Attributes:
        starts: per slice, the place of its first byte in every file that has it.
    """

    tensor: TargetTensor
    slices: Grid
    starts: Mapping[Index, tuple[Place, ...]]

    def places(self, index: Index) -> tuple[Place, ...]:
        """The places of a chunk: the storage grid cuts each slice into contiguous parts."""
        spec = self.tensor.spec
        start = spec.storage.box(index).start
        found = tuple(
            bisect_right(c, at) - 1 for c, at in zip(self.slices.cuts, start, strict=True)
        )
        box = self.slices.box(found)
        offset = 0
        for at, first, size in zip(start, box.start, box.shape, strict=True):
            offset = offset * size + at - first
        offset *= spec.itemsize
        return tuple(Place(p.file, p.start + offset) for p in self.starts[found])


CHUNK_BYTES = 16 << 20
"""Most bytes of a chunk in a shared file. It is a unit of work only: readers of the file do not see it.

Where files are uploaded in order, one chunk is read while those before it are sent."""


def in_shared_files(tensor: TargetTensor, source: StoredTensor, slices: Grid) -> TargetTensor:
    """The tensor with contiguous parts of each slice as chunks, cut where the source is if that is near."""
    spec, wanted = tensor.spec, source.spec.storage
    near = wanted if wanted.shape == slices.shape else None
    storage = contiguous_grid(slices, spec.itemsize, CHUNK_BYTES, near)
    return replace(tensor, spec=replace(spec, storage=storage), encoding=Encoding(), packed=slices)


def refuse_dtype(tensor: TargetTensor, known: Collection[str], whose: str) -> None:
    """Raises PlanError unless the dtype is in ``known``; ``whose`` names the format, as in "which … do not have"."""
    spec = tensor.spec
    if spec.dtype not in known:
        raise PlanError(
            f"{spec.name!r} is {spec.dtype}, which {whose} do not have; drop it, or cast it to one of {', '.join(known)}"
        )


def kept_shards(tensor: TargetTensor, source: StoredTensor) -> Grid:
    """The slices of the shards of a tensor, whole for one without elements, or with shards that are no grid.

    Where nothing else tells the shards, they are those of the source.
    """
    shards, spec = tensor.shards, tensor.spec
    if not isinstance(shards, Grid) or not spec.nbytes:
        return Grid.whole(spec.shape)
    is_given = spec.layout is not None or tensor.partition is not None
    if is_given or source.partition is None or source.spec.shape != spec.shape:
        return shards
    kept = replace(tensor, partition=source.partition, slices=None).shards
    return kept if isinstance(kept, Grid) else shards  # a partition has a grid
