"""The box of each tensor in one shard of a layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import LayoutError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.geometry.box import Box
from reshard.geometry.grid import Grid
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.layout.tensor_layout import device_boxes
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.rules import rewrites
from reshard.planning.target_layouts import Layout, TensorSplit, look_up, split


class ShardPart(Struct, frozen=True):
    """The box of one tensor in a shard.

    Attributes:
        name: in the shard.
        box: in the coordinates of the full tensor.
        saturate: whether the cast clips values to the largest finite one.
    """

    name: str
    stored: StoredTensor
    dtype: str
    box: Box
    saturate: bool = False


class StreamedShard(Struct, frozen=True):
    """One of the ``count`` shards of a layout."""

    number: int
    count: int
    parts: tuple[ShardPart, ...]


def shard_parts(
    reader: Reader, layout: Layout | None, changes: Changes, number: int
) -> StreamedShard:
    """The parts of shard ``number``, in the tree's order; whole tensors are in every shard.

    The number of shards is that of the tensor with the most; a tensor with fewer is missing from the last shards.
    Raises LayoutError if there is no such shard, and the errors of the layout and the changes.
    """
    own = layout.changes if isinstance(layout, LayoutFile) else Changes()
    wanted = _whole_parts(reader, own + changes)
    look_up(layout, [part.name for part in wanted])
    splits = [_split(part.name, part.stored.spec, part.dtype, layout) for part in wanted]
    count = max(map(_count, splits), default=1)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        raise LayoutError(f"shard {number!r} does not exist: the layout has {_shards(count)}")
    parts = (
        replace(part, box=box)
        for part, parted in zip(wanted, splits, strict=True)
        if (box := _box(parted, part.name, part.stored.spec.shape, number)) is not None
    )
    return StreamedShard(number, count, tuple(parts))


def _whole_parts(reader: Reader, changes: Changes) -> list[ShardPart]:
    """Every tensor that the changes keep, whole."""
    tensors = reader.tensors
    specs = {name: t.spec for name, t in tensors.items()}
    keys = [name for name, t in tensors.items() if t.is_key]
    kept = rewrites(changes, [leaf.name for leaf in reader.leaves], specs, keys)
    return [
        ShardPart(
            rewrite.target,
            tensors[rewrite.source],
            rewrite.dtype or specs[rewrite.source].dtype,
            Box.full(specs[rewrite.source].shape),
            rewrite.saturate,
        )
        for rewrite in kept
        if rewrite.source in tensors
    ]


def _split(name: str, source: TensorSpec, dtype: str, layout: Layout | None) -> TensorSplit:
    bare = replace(
        source,
        name=name,
        dtype=dtype,
        storage=Grid.whole(source.shape),
        chunk_shape=None,
        layout=None,
    )
    return split(bare, source, layout)


def _count(parted: TensorSplit) -> int:
    if parted.partition is not None:
        return parted.slices.count
    mesh = parted.layout.device_mesh if parted.layout is not None else None
    return 1 if mesh is None else math.prod(mesh.shape)


def _box(parted: TensorSplit, name: str, shape: Sequence[int], number: int) -> Box | None:
    if parted.partition is not None:
        boxes = list(parted.slices.boxes())
        return boxes[number] if number < len(boxes) else None
    if parted.layout is None or parted.layout.device_mesh is None:
        return Box.full(shape)
    if number >= _count(parted):
        return None
    return device_boxes(parted.layout, shape, name)[number]


def _shards(count: int) -> str:
    return "only shard 0" if count == 1 else f"{count} shards; ask for one from 0 to {count - 1}"
