"""One whole chunk in host memory: a view of the shard that contains it, or a copy from several shards.

The elements of a shard are a view if the data is already in host memory, else a copy from the device. A view of a jax array on
the CPU keeps its memory alive, and a computation that donates the array then takes new memory, so the view never changes. jax
keeps the host copy of an array as long as the array itself. So each copy is made through a new array object over the same
device memory, which is dropped after use.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from reshard.formats.base import TargetTensor
from reshard.formats.codecs import encoder_bytes
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.saving.tensors import DeviceShard, LiveTensor
from reshard.storage.base import ON_DISK, Traits

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

ChunkPart = tuple[DeviceShard, Box, tuple[slice, ...]]
"""A shard, the part of its data that belongs to a chunk, and the place of that part in the chunk."""


def parts(tensor: LiveTensor, box: Box) -> list[ChunkPart]:
    """The part of ``box`` that each shard has."""
    found = ((shard, shard.within(box)) for shard in tensor.touching(box))
    return [(shard, *hit) for shard, hit in found if hit is not None]


def host_chunk(tensor: LiveTensor, spec: TensorSpec, box: Box) -> Array:
    """The chunk's elements, row-major and little-endian, padded with zeros to its stored shape."""
    import numpy as np

    found = parts(tensor, box)
    stored, dtype = _stored_shape(spec), numpy_dtype(spec.dtype)
    if _is_one(found, box, stored):
        view = elements(found[0][0].data, found[0][1])
        if view.flags.c_contiguous and view.dtype == dtype:
            return view
    chunk: Array = (np.empty if stored == box.shape else np.zeros)(stored, dtype)
    for shard, local, places in found:
        chunk[places] = elements(shard.data, local)
    return chunk


def chunk_bytes_needed(
    tensor: LiveTensor, target: TargetTensor, *, ocdbt: bool, traits: Traits = ON_DISK
) -> int:
    """Upper bound of the memory that a chunk of the tensor takes until it is written.

    A database gets a copy of each encoded chunk, and keeps two more until they are on disk. An object is joined from its
    parts, and copied when it is put.
    """
    spec = target.spec
    stored = math.prod(_stored_shape(spec)) * spec.itemsize
    copies = max((_copied(tensor, spec, box) for box in _kinds(spec.storage)), default=0)
    packed = 3 * stored if ocdbt else 0
    if (put := traits.put_bytes(stored)) is not None:
        packed = stored + put
    return copies + encoder_bytes(target.encoding, stored) + packed


def _kinds(grid: Grid) -> list[Box]:
    """The first and the last chunk: a chunk's shape alone decides whether it is a view."""
    if not grid.count:
        return []
    return [grid.box((0,) * len(grid.shape)), grid.box(tuple(n - 1 for n in grid.parts))]


def _copied(tensor: LiveTensor, spec: TensorSpec, box: Box) -> int:
    found = parts(tensor, box)
    stored = _stored_shape(spec)
    moved = [local.size * spec.itemsize for shard, local, _ in found if not _here(shard)]
    if _is_one(found, box, stored) and (moved or _is_run(found[0][0], found[0][1])):
        return sum(moved)
    return math.prod(stored) * spec.itemsize + max(moved, default=0)


def _here(shard: DeviceShard) -> bool:
    return shard.data is None or on_host(shard.data)


def _is_one(found: list[ChunkPart], box: Box, stored: tuple[int, ...]) -> bool:
    return len(found) == 1 and found[0][1].shape == box.shape == stored


def _is_run(shard: DeviceShard, local: Box) -> bool:
    """True if the elements are contiguous in the shard's memory."""
    data = shard.data
    if data is None:
        return True
    strides = getattr(data, "strides", None)
    if strides is not None and not data.flags.c_contiguous:
        return False
    partial = [d for d, n in enumerate(data.shape) if local.shape[d] != n]
    return all(n == 1 for n in local.shape[: partial[-1]]) if partial else True


def _stored_shape(spec: TensorSpec) -> tuple[int, ...]:
    return spec.chunk_shape if spec.chunk_shape is not None else spec.shape


def on_host(data: Any) -> bool:
    """True if numpy sees the elements without a copy."""
    import numpy as np

    if isinstance(data, np.ndarray):
        return True
    (device,) = data.sharding.device_set
    return bool(device.platform == "cpu")


def elements(data: Any, box: Box) -> Array:
    """The elements of ``data`` (numpy, or jax on one device) in ``box``: a view if possible."""
    import numpy as np

    if isinstance(data, np.ndarray):
        view: Array = data[box.slices]
        return view
    if on_host(data) or box.shape == data.shape:
        whole: Array = np.asarray(_again(data))
        return whole[box.slices]
    part: Array = np.asarray(_cut(data, box))
    return part


def _again(data: Any) -> Any:
    """Another jax array over the same device memory, without a cached host copy."""
    import jax

    return jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])


def _cut(data: Any, box: Box) -> Any:
    """A part of the array, cut out on the device; its start is an argument, so that jax compiles this once."""
    import jax

    return jax.lax.dynamic_slice(data, box.start, box.shape)


def keep_data(tensors: dict[str, LiveTensor], wanted: set[int]) -> dict[str, LiveTensor]:
    """The tensors with data that later changes of the tree do not affect.

    ``wanted`` has the ids of the data that this process writes; other data is dropped. All copies from devices start
    before the first is awaited.
    """
    mine = [s.data for t in tensors.values() for s in t.shards if id(s.data) in wanted]
    again = {id(data): _under_way(data) for data in mine}
    held = {key: _held(data) for key, data in again.items()}
    return {
        name: replace(
            t, shards=tuple(dataclasses.replace(s, data=held.get(id(s.data))) for s in t.shards)
        )
        for name, t in tensors.items()
    }


def _under_way(data: Any) -> Any:
    import numpy as np

    if isinstance(data, np.ndarray):
        return data
    array = _again(data)
    if not on_host(data):
        array.copy_to_host_async()
    return array


def _held(data: Any) -> Array:
    """A copy of a numpy array, since its owner may change it; a view of a jax array, which cannot change."""
    import numpy as np

    return np.array(data) if isinstance(data, np.ndarray) else np.asarray(data)
