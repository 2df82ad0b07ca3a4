"""Live tensors: the processes that have each element, the data in this process, and the sharding of a jax array that a checkpoint records.

Replicas count once. A shard is a box; a shard of a "mod" table is every k-th row of a box.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import LayoutError, TreeError
from reshard.formats.contents import Leaf
from reshard.formats.orbax.write_metadata import sharding_value
from reshard.geometry.grid import Box, Grid
from reshard.layout.bridges.jax_sharding import layout_from_sharding
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.partitioners import div_cuts, recorded_partitioner
from reshard.layout.tensor_layout import TensorLayout
from reshard.saving.tree import LiveLeaf
from reshard.variables.sharded.variable import ShardedVariable

if TYPE_CHECKING:
    import jax


class ArraySharding(Struct, frozen=True):
    """The sharding of arrays of one shape.

    Attributes:
        holders: the processes that have each box, in rising order; boxes in the order of their starts.
        layout: mesh and axes; None for a sharding without a mesh.
        recorded: JSON of Orbax's ``_sharding``; None if the layout says everything.
        memory_kind: None for the device's default memory.
    """

    holders: Mapping[Box, tuple[int, ...]]
    layout: TensorLayout | None
    recorded: str | None
    memory_kind: str | None

    @property
    def grid(self) -> Grid:
        """The grid of the boxes; all shards of a jax array have one shape."""
        last = max(self.holders, key=lambda box: box.start)
        first = next(iter(self.holders))
        return Grid.regular(last.stop, [max(1, n) for n in first.shape])


@lru_cache(maxsize=4096)
def array_sharding(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], recorded: jax.sharding.Sharding
) -> ArraySharding:
    """The boxes that ``sharding`` gives an array of ``shape``, and the layout of ``recorded``.

    The two shardings differ for PRNG keys: that of the keys is recorded, that of their data gives the boxes.

    Raises LayoutError for shardings whose devices do not have boxes of one tensor.
    """
    indices: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    boxes = {device: box_of_index(index, shape) for device, index in indices.items()}
    held: dict[Box, set[int]] = defaultdict(set)
    for device, box in boxes.items():
        held[box].add(device.process_index)
    ordered = sorted(held, key=lambda box: box.start)
    holders = {box: tuple(sorted(held[box])) for box in ordered}
    return ArraySharding(
        holders, _layout(recorded), _recorded(recorded, boxes, ordered), _memory(sharding)
    )


def box_of_index(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """jax's index of a shard as a box."""
    bounds = [s.indices(n) for s, n in zip(index, shape, strict=True)]
    return Box(tuple(b[0] for b in bounds), tuple(b[1] for b in bounds))


def _layout(sharding: jax.sharding.Sharding) -> TensorLayout | None:
    from jax.sharding import NamedSharding

    return layout_from_sharding(sharding) if isinstance(sharding, NamedSharding) else None


def _memory(sharding: jax.sharding.Sharding) -> str | None:
    kind = sharding.memory_kind
    device: Any = next(iter(sharding.device_set))
    return None if kind in (None, device.default_memory().kind) else str(kind)


def _recorded(
    sharding: jax.sharding.Sharding, boxes: Mapping[Any, Box], ordered: Sequence[Box]
) -> str | None:
    from jax.sharding import NamedSharding

    if isinstance(sharding, NamedSharding):
        return None
    devices = list(sharding.device_set)
    if len(devices) == 1:
        # Orbax restores it only if a device of that name exists, as with its own checkpoints.
        document = {"sharding_type": "SingleDeviceSharding", "device_str": str(devices[0])}
        return json.dumps(document)
    return _equivalent(boxes, ordered)


def _equivalent(boxes: Mapping[Any, Box], ordered: Sequence[Box]) -> str | None:
    """A NamedSharding that gives each device the same box, for shardings without a mesh.

    None if some boxes have more holders than others, which does not happen in jax.
    """
    parts = [len({box.start[dim] for box in ordered}) for dim in range(ordered[0].rank)]
    copies, rest = divmod(len(boxes), len(ordered))
    if rest or math.prod(parts) != len(ordered):
        return None
    place = {box: n for n, box in enumerate(ordered)}
    devices = sorted(boxes, key=lambda device: (place[boxes[device]], device.id))
    names = [f"dim{dim}" for dim in range(len(parts))]
    mesh = DeviceMesh((*parts, copies), (*names, "copies"), device_ids=[d.id for d in devices])
    axes = [name if n > 1 else None for name, n in zip(names, parts, strict=True)]
    return sharding_value(TensorLayout(axes, mesh), len(axes))


def sharding_problem(sharding: jax.sharding.Sharding | None) -> str:
    """The reason why an array with this sharding cannot be saved; "" if it can."""
    try:
        _layout(sharding) if sharding is not None else None
    except LayoutError as error:
        return str(error)
    return ""


FIRST = (0,)
"""The holder of data that every process has a copy of: process 0 writes it."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceShard:
    """Elements of a tensor: all in ``box``, or every ``step``-th along ``axis``.

    Attributes:
        holders: the processes that have them, in rising order.
        data: the elements, as a numpy array or a jax array on one device; None if only other processes have them.
    """

    box: Box
    holders: tuple[int, ...]
    data: Any = dataclasses.field(default=None, compare=False, repr=False)
    axis: int = 0
    step: int = 1

    def within(self, box: Box) -> tuple[Box, tuple[slice, ...]] | None:
        """The part of ``box`` in this shard: its box in ``data`` and its slices in an array of ``box``; None if there is none."""
        common = self.box.intersect(box)
        if common is None:
            return None
        if self.step == 1:
            return common.relative_to(self.box.start), _slices(common.relative_to(box.start))
        return self._rows_within(common, box)

    def _rows_within(self, common: Box, box: Box) -> tuple[Box, tuple[slice, ...]] | None:
        axis, step = self.axis, self.step
        own = self.box.start[axis]
        first = own + -(-(common.start[axis] - own) // step) * step
        count = -(-(common.stop[axis] - first) // step)
        if count < 1:
            return None
        local = common.relative_to(self.box.start)
        at = (first - own) // step
        local = Box(_with(local.start, axis, at), _with(local.stop, axis, at + count))
        places = list(_slices(common.relative_to(box.start)))
        places[axis] = slice(first - box.start[axis], common.stop[axis] - box.start[axis], step)
        return local, tuple(places)


class LiveTensor(Struct, frozen=True):
    """One tensor of the tree.

    Attributes:
        shards: disjoint and complete.
        grid: the grid whose boxes the shards are, row-major; None if they do not form a grid.
        chunked_as: the grid from which the chunks are derived.
        layout: the layout to record: its own, or the given one.
        slices: the slices to record if the layout does not give them.
        partition: strategy, axis and number of shards of a ShardedVariable.
    """

    leaf: Leaf
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[DeviceShard, ...]
    grid: Grid | None
    chunked_as: Grid
    layout: TensorLayout | None = None
    slices: Grid | tuple[Box, ...] | None = None
    partition: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.leaf.name

    def touching(self, box: Box) -> Iterator[DeviceShard]:
        """The shards that overlap ``box``, and perhaps others."""
        if self.grid is None:
            yield from self.shards
            return
        parts = self.grid.parts
        for index in itertools.product(*self.grid.overlapping(box)):
            yield self.shards[_flat(index, parts)]


def live_tensor(leaf: LiveLeaf, *, is_own: bool) -> LiveTensor:
    """The leaf's array as shards; ``is_own`` if every process has a copy of this jax array.

    TreeError if a process lacks data that it would have to write.
    """
    import jax

    array = leaf.array
    if isinstance(array, ShardedVariable):
        return _from_variable(leaf.leaf, array)
    if isinstance(array, jax.Array):
        return _from_jax(leaf.leaf, array, is_own=is_own)
    whole = Grid.whole(array.shape)
    shard = DeviceShard(Box.full(array.shape), FIRST, array)
    return LiveTensor(leaf.leaf, array.shape, array.dtype.name, (shard,), whole, whole)


def _from_jax(leaf: Leaf, array: Any, *, is_own: bool) -> LiveTensor:
    is_key = leaf.meta.get("ext_metadata") is not None
    data, found = data_and_sharding(array, is_key=is_key)
    shards = _shards(data, found, shared=is_own)
    grid = found.grid
    meta = {**leaf.meta, "sharding": found.recorded, "memory_kind": found.memory_kind}
    leaf = replace(leaf, meta={key: value for key, value in meta.items() if value is not None})
    slices = grid if found.layout is None else None
    return LiveTensor(leaf, data.shape, data.dtype.name, shards, grid, grid, found.layout, slices)


def data_and_sharding(array: Any, *, is_key: bool) -> tuple[Any, ArraySharding]:
    """The array (for PRNG keys, their data), and its sharding."""
    import jax

    data = jax.random.key_data(array) if is_key else array
    return data, array_sharding(data.sharding, data.shape, array.sharding)


def _shards(array: Any, found: ArraySharding, *, shared: bool) -> tuple[DeviceShard, ...]:
    """One shard per box; ``shared`` if every process has its own copy of the array."""
    local: dict[Box, Any] = {}
    for shard in sorted(array.addressable_shards, key=lambda s: s.device.id):
        local.setdefault(box_of_index(shard.index, array.shape), shard.data)
    return tuple(
        DeviceShard(box, FIRST if shared else holders, local.get(box))
        for box, holders in found.holders.items()
    )


def _from_variable(leaf: Leaf, variable: ShardedVariable) -> LiveTensor:
    shape = variable.shape
    count = len(variable.variables)
    shards = tuple(
        shard
        for data, rows in zip(variable.variables, variable.rows, strict=True)
        for shard in _of_rows(leaf.name, data, rows, variable)
    )
    partition = _partition(variable)
    even = _even(shape, variable.axis, count)
    if variable.partition_strategy == "mod":
        slices: Grid | tuple[Box, ...] = Grid.whole(shape)
        return LiveTensor(
            leaf, shape, variable.dtype.name, shards, None, even, None, slices, partition
        )
    slices = _slices_of(variable)
    chunked_as = slices if isinstance(slices, Grid) else even
    return LiveTensor(
        leaf, shape, variable.dtype.name, shards, None, chunked_as, None, slices, partition
    )


def _partition(variable: ShardedVariable) -> dict[str, Any]:
    partitioner = recorded_partitioner(variable.partitioner)
    return {
        "strategy": variable.partition_strategy,
        "axis": variable.axis,
        "shards": len(variable.variables),
        **({"partitioner": partitioner} if partitioner else {}),
    }


def _even(shape: tuple[int, ...], axis: int, count: int) -> Grid:
    shards = max(1, min(count, shape[axis]))
    return Grid(shape, tuple(div_cuts(n, shards if d == axis else 1) for d, n in enumerate(shape)))


def _slices_of(variable: ShardedVariable) -> Grid | tuple[Box, ...]:
    """The grid of the shards; loose boxes if a shard has no rows, which a grid cannot express."""
    shape, boxes = variable.shape, variable.boxes
    if not all(box.size for box in boxes):
        return tuple(boxes)
    cuts: list[tuple[int, ...]] = [(0, n) if n else (0,) for n in shape]
    cuts[variable.axis] = (0, *(box.stop[variable.axis] for box in boxes))
    return Grid(shape, tuple(cuts))


def _of_rows(name: str, data: Any, rows: range, variable: ShardedVariable) -> Iterator[DeviceShard]:
    """A shard of the variable, as the boxes of its devices; a numpy shard is one box."""
    if not getattr(data, "is_fully_addressable", True):
        raise TreeError(
            f"{name!r} is a ShardedVariable with a shard on devices of other processes; every process "
            "must have the whole variable, or give one jax array that is sharded over all of them"
        )
    if not len(rows) or not data.size:
        return
    axis = variable.axis
    for shard in _held(data):
        start, stop = shard.box.start[axis], shard.box.stop[axis]
        held = rows[start:stop]
        box = Box(
            _with(shard.box.start, axis, held[0]),
            _with(shard.box.stop, axis, held[-1] + 1),
        )
        yield dataclasses.replace(shard, box=box, axis=axis, step=held.step)


def _held(data: Any) -> tuple[DeviceShard, ...]:
    import numpy as np

    if isinstance(data, np.ndarray):
        return (DeviceShard(Box.full(data.shape), FIRST, data),)
    _, found = data_and_sharding(data, is_key=False)
    return _shards(data, found, shared=True)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(map(slice, box.start, box.stop))


def _with(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _flat(index: tuple[int, ...], parts: tuple[int, ...]) -> int:
    place = 0
    for i, count in zip(index, parts, strict=True):
        place = place * count + i
    return place
