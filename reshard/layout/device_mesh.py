"""DeviceMesh: named axes with sizes, and the devices along them: jax devices, or names such as ``cpu:0``, one per place."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Union

from reshard.errors import LayoutError
from reshard.layout.axes import in_order, show_name

if TYPE_CHECKING:
    import jax
    import numpy as np
    from jax.sharding import AbstractMesh, Mesh

    DeviceArray = np.ndarray[Any, np.dtype[np.object_]]
    """An object array of jax devices, in the shape of their mesh."""


AXIS_TYPES = ("Auto", "Explicit", "Manual")
"""jax's axis types, by the names of ``jax.sharding.AxisType``."""

MAX_DEVICES = 1 << 20
"""Most devices of a mesh. No machine has more; a larger number is a mistake or an attack."""

MAX_DEVICE_ID = 1 << 31
"""Larger than every device id: jax keeps ids in 32 bits."""

MAX_AXES = 64
"""Most axes of a mesh: as many as a numpy array of devices may have."""


class AxisNames(tuple[str, ...]):
    """The names of a mesh's axes: a tuple, as in jax (so it can be a key), that also equals a list of the same names, as in Keras."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


@dataclass(frozen=True, init=False, eq=False)
class DeviceMesh:
    """Named axes with sizes; devices are needed only to place live arrays on them.

    Args:
        shape: size of each axis, at least 1; or a ``jax.sharding.Mesh``, ``AbstractMesh`` or mesh of Keras, without any other
            argument.
        axis_names: one name per size, all different.
        devices: the jax devices along the axes, or their names (``"cpu:0"``): as many as the
            product of ``shape``, all different, in an array or nested sequence of any shape, read
            row-major. None for an abstract mesh, without devices.
        axis_types: one of ``AXIS_TYPES`` per axis, also written as ``"AxisType.Auto"``; None for unknown types.
            They are part of the mesh's value, as in jax.
        device_ids: the ids of the devices along the axes, row-major, as a checkpoint records them; ``devices`` have
            their own ids. None for unknown ids.

    Attributes:
        devices: an array of jax devices in the shape of the mesh, read-only, or None.

    Raises LayoutError if these contradict each other. Meshes with different devices or device ids are not equal.

    >>> DeviceMesh((4, 2), ("data", "model")).axis_size("model")
    2
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    devices: DeviceArray | None = field(default=None, repr=False)
    axis_types: tuple[str, ...] | None = None
    device_ids: tuple[int, ...] | None = field(default=None, repr=False)

    def __init__(
        self,
        shape: Sequence[int] | Mesh | AbstractMesh,
        axis_names: Sequence[str] | None = None,
        devices: DevicesLike | None = None,
        *,
        axis_types: Sequence[str] | None = None,
        device_ids: Sequence[int] | None = None,
    ) -> None:
        if axis_names is None and is_other_mesh(shape):
            given = as_mesh(shape)
            shape, axis_names, axis_types = given.shape, given.axis_names, given.axis_types
            devices = given.devices if devices is None else devices
        object.__setattr__(self, "shape", _sizes(shape))
        object.__setattr__(self, "axis_names", _names(axis_names, self.shape))
        object.__setattr__(self, "axis_types", _types(axis_types, self.axis_names))
        placed = None if devices is None else place_devices(devices, self.shape, self)
        object.__setattr__(self, "devices", placed)
        object.__setattr__(self, "device_ids", _ids(device_ids, placed, self))

    @property
    def abstract(self) -> DeviceMesh:
        """The same axes without devices or their ids."""
        if self.devices is None and self.device_ids is None:
            return self
        return DeviceMesh(self.shape, self.axis_names, axis_types=self.axis_types)

    @property
    def recorded(self) -> DeviceMesh:
        """The mesh as a checkpoint records it: with the ids of its devices, but without the devices.

        A mesh of all of ``jax.devices()`` in their order is recorded without ids, so that it fits
        as many devices of any ids.
        """
        return self if self.devices is None else self._recorded

    @cached_property
    def _recorded(self) -> DeviceMesh:
        ids = None if self.devices is None or is_every_device(self.devices) else self.device_ids
        return DeviceMesh(self.shape, self.axis_names, axis_types=self.axis_types, device_ids=ids)

    @property
    def backend_mesh(self) -> Mesh | AbstractMesh:
        """The ``jax.sharding.Mesh`` of its devices, or an ``AbstractMesh`` if it has none."""
        from reshard.layout.bridges.jax_sharding import mesh_to_jax

        return mesh_to_jax(self)

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    @classmethod
    def from_jax(cls, mesh: Mesh | AbstractMesh) -> DeviceMesh:
        """The same axes, sizes, axis types and devices; ``backend_mesh`` converts back."""
        from reshard.layout.bridges.jax_sharding import mesh_from_jax

        return mesh_from_jax(mesh)

    def to_keras(self) -> Any:
        """A ``keras.distribution.DeviceMesh`` of its devices; of all devices if it has none."""
        from reshard.layout.bridges.keras_distribution import mesh_to_keras

        return mesh_to_keras(self)

    @classmethod
    def from_keras(cls, device_mesh: Any) -> DeviceMesh:
        """A ``keras.distribution.DeviceMesh`` as a DeviceMesh, devices included."""
        from reshard.layout.bridges.keras_distribution import mesh_from_keras

        return mesh_from_keras(device_mesh)

    def axis_size(self, name: str) -> int:
        """Devices along one axis; an unknown name is a LayoutError that lists the known ones."""
        if name not in self.axis_names:
            raise LayoutError(f"mesh axis {name!r} is not in {self}")
        return self.shape[self.axis_names.index(name)]

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, DeviceMesh):
            return self is other
        return self._axes() == other._axes() and self._devices() == other._devices()

    def __hash__(self) -> int:
        return hash(self._axes())  # Without the devices, of which there may be thousands.

    def _axes(self) -> tuple[object, ...]:
        return self.shape, self.axis_names, self.axis_types

    def _devices(self) -> tuple[object, ...] | None:
        return self.device_ids if self.devices is None else tuple(self.devices.flat)

    def __copy__(self) -> DeviceMesh:
        return self

    def __deepcopy__(self, memo: object) -> DeviceMesh:
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self.devices is not None:
            raise LayoutError(
                f"{self} has devices, which belong to this process and cannot be pickled; pickle "
                f"its .abstract and place it on the devices of the other process"
            )
        return self.__dict__

    def __str__(self) -> str:
        sizes = (f"{show_name(n)}={s}" for n, s in zip(self.axis_names, self.shape, strict=True))
        return f"the mesh ({', '.join(sizes)})"


def same_axes(one: DeviceMesh, other: DeviceMesh) -> bool:
    """True if two meshes differ in nothing but devices; an axis of no known type is Auto, as in jax."""

    def axes(mesh: DeviceMesh) -> tuple[object, ...]:
        return mesh.shape, mesh.axis_names, mesh.axis_types or ("Auto",) * len(mesh.shape)

    return axes(one) == axes(other)


MeshLike = Union[DeviceMesh, "Mesh", "AbstractMesh"]
"""Types that are accepted as a mesh: DeviceMesh, or a mesh of jax. One of Keras, which is not typed, is accepted too."""


def is_other_mesh(mesh: object) -> bool:
    """True for a mesh of jax or of Keras; neither is imported for it."""
    from reshard.layout.bridges.from_keras import is_from_keras
    from reshard.layout.bridges.jax_sharding import is_from_jax

    return is_from_jax(mesh, "Mesh", "AbstractMesh") or is_from_keras(mesh, "DeviceMesh")


def as_mesh(mesh: object) -> DeviceMesh:
    """A DeviceMesh unchanged, or a mesh of jax or Keras as a DeviceMesh; LayoutError for anything else."""
    from reshard.layout.bridges.jax_sharding import is_from_jax

    if isinstance(mesh, DeviceMesh):
        return mesh
    if is_from_jax(mesh, "Mesh", "AbstractMesh"):
        return DeviceMesh.from_jax(mesh)  # type: ignore[arg-type]  # which is_from_jax has looked at
    if is_other_mesh(mesh):
        return DeviceMesh.from_keras(mesh)
    raise LayoutError(
        f"expected a reshard.DeviceMesh or jax.sharding.Mesh, found a {type(mesh).__name__}: {mesh!r}; make "
        f"one with DeviceMesh(shape, axis_names, devices)"
    )


def mesh_document(mesh: DeviceMesh) -> dict[str, Any]:
    """The members of a mesh in a file of reshard."""
    types = {} if mesh.axis_types is None else {"axis_types": list(mesh.axis_types)}
    ids = {} if mesh.device_ids is None else {"device_ids": list(mesh.device_ids)}
    return {"axes": list(mesh.axis_names), "shape": list(mesh.shape), **types, **ids}


def parse_mesh(text: str) -> DeviceMesh:
    """The mesh that ``--mesh`` names, such as ``data=4,model=2``.

    >>> parse_mesh("data=4,model=2").shape
    (4, 2)
    """
    pairs = [part.partition("=") for part in text.split(",")]
    for name, _, size in pairs:
        if not name.strip() or not (size.strip().isascii() and size.strip().isdigit()):
            raise LayoutError(
                f"mesh {text!r}: expected NAME=SIZE,NAME=SIZE such as data=4,model=2, "
                f"found {name + _ + size!r}"
            )
    names = tuple(name.strip() for name, _, _ in pairs)
    # Sizes with many digits are cut short: they exceed the largest mesh anyway.
    return DeviceMesh(tuple(int(size.strip()[:20]) for _, _, size in pairs), names)


def _sizes(shape: object) -> tuple[int, ...]:
    found = in_order(shape)
    try:
        sizes = None if found is None else tuple(map(operator.index, found))
    except TypeError:
        sizes = None
    if sizes is None:
        raise LayoutError(
            f"a mesh's shape must be a sequence of whole numbers, one per axis, not {shape!r}"
        )
    if not sizes:
        raise LayoutError("a mesh's shape cannot be empty; name at least one axis, such as (1,)")
    if min(sizes) < 1:
        raise LayoutError(f"each size of a mesh must be at least 1, but the shape is {list(sizes)}")
    if len(sizes) > MAX_AXES or math.prod(sizes) > MAX_DEVICES:
        raise LayoutError(
            f"a mesh may have at most {MAX_AXES} axes and {MAX_DEVICES} devices, but the shape is "
            f"{list(sizes[:8])}{' …' if len(sizes) > 8 else ''}"
        )
    return sizes


def _names(names: Sequence[str] | None, shape: tuple[int, ...]) -> AxisNames:
    found = in_order(names)
    if found is None or [name for name in found if not (isinstance(name, str) and name)]:
        raise LayoutError(
            f"a mesh's axis names must be a sequence of non-empty strings, not {names!r}"
        )
    names = AxisNames(map(str, found))
    if not names:
        raise LayoutError("a mesh's axis names cannot be empty; name one axis per size")
    if len(names) != len(shape):
        raise LayoutError(
            f"a mesh's shape and axis names should have same size, but shape {list(shape)} has "
            f"{len(shape)} and names {list(names)} have {len(names)}"
        )
    if len(set(names)) != len(names):
        raise LayoutError(f"a mesh's axis names must differ, but are {list(names)}")
    return names


def _ids(
    ids: Sequence[int] | None, placed: DeviceArray | None, mesh: DeviceMesh
) -> tuple[int, ...] | None:
    if placed is not None:
        devices: list[jax.Device] = list(placed.flat)
        return tuple([device.id for device in devices])
    if ids is None:
        return None
    found = in_order(ids) or ()
    are_ids = set(map(type, found)) == {int} and min(found) >= 0 and max(found) < MAX_DEVICE_ID
    if not (are_ids and len(set(found)) == len(found) == mesh.size):
        raise LayoutError(
            f"{mesh} needs {mesh.size} different device ids, whole numbers from 0, one for each of its places; "
            f"found {len(found)}: {', '.join(map(repr, found[:8]))}{', …' if len(found) > 8 else ''}"
        )
    return found


def _types(types: Sequence[str] | None, names: tuple[str, ...]) -> tuple[str, ...] | None:
    if types is None:
        return None
    known = {t.lower(): t for t in AXIS_TYPES}
    found = [known.get(str(t).lower().removeprefix("axistype.")) for t in in_order(types) or ()]
    if None in found or len(found) != len(names):
        raise LayoutError(
            f"a mesh's axis types must be one of {', '.join(AXIS_TYPES)} for each of its "
            f"{len(names)} axes {list(names)}, not {types!r}"
        )
    return tuple([t for t in found if t is not None])


DevicesLike = Any
"""Devices, or their names, in any nested sequence or array; row-major."""


def place_devices(devices: DevicesLike, shape: tuple[int, ...], mesh: DeviceMesh) -> DeviceArray:
    """The devices in the mesh's shape, read-only; LayoutError for wrong counts, wrong types and duplicates."""
    import jax
    import numpy as np

    flat = [d if isinstance(d, jax.Device) else _named(d, mesh) for d in _flat(devices)]
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


def on_all_devices(mesh: DeviceMesh) -> DeviceMesh:
    """The same axes over all of ``jax.devices()``, in their order; a LayoutError if they do not fill the mesh."""
    import jax

    places = mesh.size
    if jax.device_count() != places:
        raise LayoutError(
            f"{mesh} has no devices, and the {jax.device_count()} of jax.devices() do not fill its "
            f"{places} places; name them: DeviceMesh(shape, axis_names, devices)"
        )
    return _over(mesh, tuple(jax.devices()))


@lru_cache(maxsize=64)
def _over(mesh: DeviceMesh, devices: tuple[jax.Device, ...]) -> DeviceMesh:
    """The same axes over devices; cached, since a tree's tensors share few meshes."""
    return DeviceMesh(mesh.shape, mesh.axis_names, devices, axis_types=mesh.axis_types)


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
        flat: list[object] = []
        for one in devices:
            is_nested = isinstance(one, np.ndarray | Sequence) and not isinstance(one, str)
            flat += _flat(one) if is_nested else [one]
        return flat
    return [devices]


def _named(name: object, mesh: DeviceMesh) -> jax.Device:
    """The device of that name. Raises LayoutError for another name, and for anything that is no name."""
    import jax

    if not isinstance(name, str):
        raise LayoutError(
            f"{mesh} was given {name!r} for a device; expected jax devices, such as those of "
            f"jax.devices(), or their names, such as 'cpu:0'"
        )
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
