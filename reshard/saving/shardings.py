"""The sharding of a jax array: the processes that have each box, and the sharding that a checkpoint records."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.formats.orbax.write_metadata import sharding_value
from reshard.geometry.grid import Box, Grid
from reshard.layout.bridges.jax_sharding import layout_from_sharding
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout

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
