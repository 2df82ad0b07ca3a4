"""The kinds of output (numpy, jax, ShardedVariable), the regions that each needs, and how full buffers become it.

A buffer that is filled is handed over at once. Where jax can adopt its memory (CPU devices, whole
bytes, 64-byte alignment) it is the array from then on, shared by all replicas on this host; elsewhere
it is copied to its devices and let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import Struct

from reshard.errors import LayoutError, ReshardError
from reshard.geometry.box import Box
from reshard.restoring.regions import Region

if TYPE_CHECKING:
    import jax

    from reshard.restoring.regions import Array

    Place: TypeAlias = "jax.sharding.Sharding | DefaultDevice | HostMemory"


class Form(Protocol):
    """What one tensor becomes."""

    @property
    def holds(self) -> tuple[Region, ...]:
        """What this process needs of the tensor, each once."""
        ...

    @property
    def is_staged(self) -> bool:
        """Whether a buffer is let go once it was placed; else its memory is the result."""
        ...

    def place(self, number: int, array: Array) -> Any:
        """Hands over the full buffer of ``holds[number]``; called once for each, from any thread."""
        ...

    def assemble(self, placed: Sequence[Any]) -> Any:
        """The value, from what ``place`` gave for each hold."""
        ...


class DefaultDevice(Struct, frozen=True):
    """Where jax puts what nobody placed; ``device`` is what ``jax.default_device`` takes."""

    device: Any


class HostMemory(Struct, frozen=True):
    """The place of a shard that stays numpy."""


class NumpyArray(Struct, frozen=True):
    """A numpy array of the whole tensor, or where ``is_scalar`` its one element as a Python value."""

    shape: tuple[int, ...]
    is_scalar: bool = False

    @property
    def is_staged(self) -> bool:
        return False

    @property
    def holds(self) -> tuple[Region, ...]:
        return (Region(Box.full(self.shape)),)

    def place(self, number: int, array: Array) -> Any:  # noqa: ARG002
        return array.item() if self.is_scalar else array

    def assemble(self, placed: Sequence[Any]) -> Any:
        return placed[0]


class JaxArray(Struct, frozen=True):
    """A jax array: ``devices[i]`` are those of this process that need ``holds[i]``."""

    shape: tuple[int, ...]
    dtype: str
    sharding: jax.sharding.Sharding
    holds: tuple[Region, ...]
    devices: tuple[tuple[jax.sharding.Sharding, ...], ...]

    @property
    def is_staged(self) -> bool:
        return any(not adopts(device, self.dtype) for devices in self.devices for device in devices)

    def place(self, number: int, array: Array) -> list[Any]:
        return [put(array, device) for device in self.devices[number]]

    def assemble(self, placed: Sequence[Any]) -> Any:
        import jax

        arrays = [array for replicas in placed for array in replicas]
        dtype = arrays[0].dtype if arrays else jax.numpy.dtype(self.dtype)
        return jax.make_array_from_single_device_arrays(
            self.shape, self.sharding, arrays, dtype=dtype
        )


class Uncommitted(Struct, frozen=True):
    """A jax array where jax puts what nobody placed, free to follow others to their devices."""

    shape: tuple[int, ...]
    dtype: str
    device: DefaultDevice

    @property
    def holds(self) -> tuple[Region, ...]:
        return (Region(Box.full(self.shape)),)

    @property
    def is_staged(self) -> bool:
        return not adopts(self.device, self.dtype)

    def place(self, number: int, array: Array) -> Any:  # noqa: ARG002
        return put(array, self.device)

    def assemble(self, placed: Sequence[Any]) -> Any:
        return placed[0]


class InShards(Struct, frozen=True):
    """A ShardedVariable: ``places[i]`` is where the shard of ``holds[i]`` goes."""

    name: str
    dtype: str
    axis: int
    strategy: str
    holds: tuple[Region, ...]
    places: tuple[Place, ...]

    @property
    def is_staged(self) -> bool:
        return any(not adopts(place, self.dtype) for place in self.places)

    def place(self, number: int, array: Array) -> Any:
        return put(array, self.places[number])

    def assemble(self, placed: Sequence[Any]) -> Any:
        from reshard.variables.sharded.variable import adopted

        return adopted(placed, self.name, self.axis, self.strategy)


class Key(Struct, frozen=True):
    """PRNG keys, from the form of their data."""

    name: str
    implementation: str
    data: Form

    @property
    def holds(self) -> tuple[Region, ...]:
        return self.data.holds

    @property
    def is_staged(self) -> bool:
        return self.data.is_staged

    def place(self, number: int, array: Array) -> Any:
        return self.data.place(number, array)

    def assemble(self, placed: Sequence[Any]) -> Any:
        import jax

        try:
            return jax.random.wrap_key_data(self.data.assemble(placed), impl=self.implementation)
        except (ValueError, TypeError) as error:
            raise ReshardError(
                f"{self.name!r} holds PRNG keys of the kind {self.implementation!r}, which jax does not "
                f"make of this data: {error}"
            ) from error


def jax_array(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    sharding: jax.sharding.Sharding,
    rank: int | None = None,
) -> JaxArray:
    """The form of an array of ``shape`` under ``sharding``, which may be that of its first ``rank`` dimensions.

    Raises LayoutError, naming the tensor, where the sharding cannot split it.
    """
    from jax.sharding import SingleDeviceSharding

    outer = shape if rank is None else shape[:rank]
    try:
        found = sharding.addressable_devices_indices_map(outer)
    except (ValueError, IndexError) as error:
        raise LayoutError(
            f"{name!r} of shape {list(outer)} cannot be split by {sharding}: {str(error).strip()}"
        ) from error
    kind = sharding.memory_kind
    devices: dict[Region, list[jax.sharding.Sharding]] = {}
    for device, index in found.items():
        hold = Region(_box(index, shape))
        devices.setdefault(hold, []).append(SingleDeviceSharding(device, memory_kind=kind))
    return JaxArray(shape, dtype, sharding, tuple(devices), tuple(map(tuple, devices.values())))


def default_device() -> DefaultDevice:
    """Where jax puts what nobody placed, as this thread has it now: workers have other defaults."""
    import jax

    config: Any = jax.config  # its options are not annotated
    return DefaultDevice(config.jax_default_device)


def adopts(place: Place, dtype: str) -> bool:
    """Whether an aligned buffer is the result itself, instead of being copied to ``place``."""
    if isinstance(place, HostMemory):
        return True
    is_whole_bytes = not dtype.startswith(("int4", "uint4", "int2", "uint2", "float4"))
    return is_whole_bytes and _platforms(place) == {"cpu"}


def _platforms(place: jax.sharding.Sharding | DefaultDevice) -> set[str]:
    import jax

    if isinstance(place, DefaultDevice):
        device = place.device
        if isinstance(device, str):
            return {device}
        return {(jax.local_devices()[0] if device is None else device).platform}
    devices: Any = place.device_set
    return {device.platform for device in devices}


def put(array: Array, place: Place) -> Any:
    """The array on its devices, complete: what was copied from may be let go.

    A dtype that jax would narrow was refused before, so that nothing may be narrowed here, where a
    worker's settings are not those of the thread that asked.
    """
    import jax

    if isinstance(place, HostMemory):
        return array

    with jax.enable_x64(True):
        if isinstance(place, DefaultDevice):
            with jax.default_device(place.device):
                placed = jax.device_put(array, may_alias=True)
        else:
            placed = jax.device_put(array, place, may_alias=True)
        return jax.block_until_ready(placed)


def _box(index: Sequence[slice] | None, shape: tuple[int, ...]) -> Box:
    """jax's index of a shard as a box; dimensions that it leaves out are whole."""
    slices = tuple(index or ())
    pairs = [s.indices(n)[:2] for s, n in zip(slices, shape, strict=False)]
    pairs += [(0, n) for n in shape[len(pairs) :]]
    return Box(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
