"""Shards in host memory: views if the data is already in host memory, else copies from devices.

A view of a jax array on the CPU keeps its memory alive, and a computation that donates the array then takes new memory,
so the view never changes. jax keeps the host copy of an array as long as the array itself. So each copy is made through
a new array object over the same device memory, which is dropped after use.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from reshard.geometry.box import Box
from reshard.saving.tensors import LiveTensor

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


def on_host(data: Any) -> bool:
    """Whether numpy sees the elements without a copy."""
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
