"""The devices of a mesh: jax devices, or their names such as ``cpu:0``, one per place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.errors import LayoutError

if TYPE_CHECKING:
    import jax
    import numpy as np

    DeviceArray = np.ndarray[Any, np.dtype[np.object_]]
    """An object array of jax devices, in the shape of their mesh."""

DevicesLike = Any
"""Devices, or their names, in any nested sequence or array; row-major."""


def place_devices(devices: DevicesLike, shape: tuple[int, ...], mesh: str) -> DeviceArray:
    """The devices in the mesh's shape, read-only; LayoutError for wrong counts, wrong types and duplicates."""
    import numpy as np

    flat = [_device(d, mesh) for d in _flat(devices)]
    places = math.prod(shape)
    if len(flat) != places:
        raise LayoutError(
            f"{mesh} has {places} places, but {len(flat)} devices were given; give one each"
        )
    twice = [d for d in dict.fromkeys(flat) if flat.count(d) > 1] if len(set(flat)) < places else []
    if twice:
        raise LayoutError(f"{mesh} was given device {device_name(twice[0])} twice; give one each")
    placed = np.empty(places, dtype=object)
    placed[:] = flat
    placed = placed.reshape(shape)
    placed.flags.writeable = False
    return placed


def on_all_devices(shape: tuple[int, ...], mesh: str) -> DeviceArray:
    """All of ``jax.devices()``, in their order; a LayoutError if they do not fill the mesh."""
    import jax

    places = math.prod(shape)
    if jax.device_count() != places:
        raise LayoutError(
            f"{mesh} has no devices, and the {jax.device_count()} of jax.devices() do not fill its "
            f"{places} places; name them: DeviceMesh(shape, axis_names, devices)"
        )
    return place_devices(jax.devices(), shape, mesh)


def is_every_device(devices: DeviceArray) -> bool:
    """True if these are all of ``jax.devices()``, in their order."""
    import jax

    return list(devices.flat) == jax.devices()


def list_devices(device_type: str | None = None) -> list[str]:
    """The names of the devices of all processes, such as ``cpu:0``, as ``keras.distribution.list_devices`` gives them.

    ``device_type`` is ``"cpu"``, ``"gpu"`` or ``"tpu"``, in upper or lower case; None means jax's default. Raises
    LayoutError if there is no device of the type. ``DeviceMesh`` takes the names as its ``devices``.
    """
    import jax

    try:
        found = jax.devices(None if device_type is None else device_type.lower())
    except RuntimeError:
        raise LayoutError(
            f"there is no device of the type {device_type!r}; jax has "
            f"{', '.join(map(device_name, jax.devices()))}"
        ) from None
    return list(map(device_name, found))


def device_name(device: jax.Device) -> str:
    """The name by which Keras calls a device, such as ``cpu:0``."""
    return f"{device.platform}:{device.id}"


def _flat(devices: DevicesLike) -> list[object]:
    import numpy as np

    if isinstance(devices, np.ndarray):
        return list(devices.flat)
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        return [one for inner in devices for one in _flat(inner)]
    return [devices]


def _device(device: object, mesh: str) -> jax.Device:
    import jax

    if isinstance(device, jax.Device):
        return device
    if isinstance(device, str):
        return _named(device, mesh)
    raise LayoutError(
        f"{mesh} was given {device!r} for a device; expected jax devices, such as those of "
        f"jax.devices(), or their names, such as 'cpu:0'"
    )


def _named(name: str, mesh: str) -> jax.Device:
    import jax

    kind, _, number = name.partition(":")
    try:
        known = jax.devices(kind)
    except RuntimeError:
        known = []
    for device in known:
        if str(device.id) == (number or "0"):
            return device
    there = ", ".join(map(device_name, known or jax.devices()))
    raise LayoutError(
        f"{mesh} was given device {name!r}, which this process does not have; it has {there}"
    )
