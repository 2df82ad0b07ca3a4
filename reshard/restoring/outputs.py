"""Outputs of tensors (numpy, jax, ShardedVariable): the regions that each needs, and its value from full buffers.

A full buffer is placed at once. If jax can adopt its memory (CPU devices, whole bytes, 64-byte alignment), the buffer
becomes the array, shared by all replicas on this host. Else it is copied to its devices and freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import Struct

from reshard.errors import FormatError, LayoutError
from reshard.geometry.dtypes import VALUE_BITS, numpy_dtype
from reshard.geometry.grid import Box
from reshard.restoring.regions import Region

if TYPE_CHECKING:
    import jax

    from reshard.layout.partitioners import Partitioner
    from reshard.restoring.regions import Array

    Place: TypeAlias = "jax.sharding.Sharding | DefaultDevice | HostMemory"


class RestoredOutput(Protocol):
    """The output of one tensor."""

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions of the tensor that this process needs, each once."""
        ...

    @property
    def is_staged(self) -> bool:
        """True if a buffer is copied and freed when it is placed; otherwise its memory is the result."""
        ...

    def place(self, number: int, array: Array) -> Any:
        """Places the full buffer of ``regions[number]``; called once for each, from any thread."""
        ...

    def assemble(self, placed: Sequence[Any]) -> Any:
        """The value, from the results of ``place`` for each region."""
        ...


class DefaultDevice(Struct, frozen=True):
    """The device on which jax puts uncommitted arrays; ``device`` is a value for ``jax.default_device``."""

    device: Any


class HostMemory(Struct, frozen=True):
    """The place of a numpy shard."""


class NumpyArray(Struct, frozen=True):
    """A numpy array of the whole tensor; with ``is_scalar`` its one element as a Python value."""

    shape: tuple[int, ...]
    is_scalar: bool = False

    @property
    def is_staged(self) -> bool:
        return False

    @property
    def regions(self) -> tuple[Region, ...]:
        return (Region(Box.full(self.shape)),)

    def place(self, number: int, array: Array) -> Any:  # noqa: ARG002  of the interface
        return array.item() if self.is_scalar else array

    def assemble(self, placed: Sequence[Any]) -> Any:
        return placed[0]


class JaxArray(Struct, frozen=True):
    """A jax array; ``devices[i]`` are this process's devices that need ``regions[i]``."""

    shape: tuple[int, ...]
    dtype: str
    sharding: jax.sharding.Sharding
    regions: tuple[Region, ...]
    devices: tuple[tuple[jax.sharding.Sharding, ...], ...]
    is_staged: bool

    def place(self, number: int, array: Array) -> Any:
        if not self.is_staged:
            return array
        return [put_at(array, device) for device in self.devices[number]]

    def assemble(self, placed: Sequence[Any]) -> Any:
        import jax

        if (
            placed and not self.is_staged
        ):  # jax asks for data even if no device belongs to this process
            return self._adopted(placed)
        arrays = [array for replicas in placed for array in replicas]
        dtype = arrays[0].dtype if arrays else jax.numpy.dtype(self.dtype)
        return jax.make_array_from_single_device_arrays(
            self.shape, self.sharding, arrays, dtype=dtype
        )

    def _adopted(self, arrays: Sequence[Array]) -> Any:
        """The array of all its buffers, in one call: a call for each device takes nine times as long (measured)."""
        import jax

        held = dict(zip(self.regions, arrays, strict=True))
        with jax.enable_x64(True):  # see ``put_at``
            return jax.make_array_from_callback(
                self.shape,
                self.sharding,
                lambda index: held[Region(_box(index, self.shape))],
                dtype=numpy_dtype(self.dtype),
            )


class UncommittedArray(Struct, frozen=True):
    """A jax array on the default device, which jax may move to the devices of others."""

    shape: tuple[int, ...]
    dtype: str
    device: DefaultDevice

    @property
    def regions(self) -> tuple[Region, ...]:
        return (Region(Box.full(self.shape)),)

    @property
    def is_staged(self) -> bool:
        return not adopts(self.device, self.dtype)

    def place(self, number: int, array: Array) -> Any:  # noqa: ARG002  of the interface
        return put_at(array, self.device)

    def assemble(self, placed: Sequence[Any]) -> Any:
        return placed[0]


class Shards(Struct, frozen=True):
    """A ShardedVariable; the shard of ``regions[i]`` goes to ``places[i]``."""

    name: str
    dtype: str
    axis: int
    strategy: str
    regions: tuple[Region, ...]
    places: tuple[Place, ...]
    partitioner: Partitioner | None = None

    @property
    def is_staged(self) -> bool:
        return any(not adopts(place, self.dtype) for place in self.places)

    def place(self, number: int, array: Array) -> Any:
        return put_at(array, self.places[number])

    def assemble(self, placed: Sequence[Any]) -> Any:
        from reshard.variables.sharded.facts import Static
        from reshard.variables.sharded.variable import variable_of_shards

        static = Static(self.name, self.axis, self.strategy, partitioner=self.partitioner)
        return variable_of_shards(placed, static)


class Key(Struct, frozen=True):
    """PRNG keys, from the output of their data."""

    name: str
    implementation: str
    data: RestoredOutput

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.data.regions

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
            raise FormatError(
                f"{self.name!r} has PRNG keys of the kind {self.implementation!r}, which jax does not "
                f"make of this data: {error}; leave it out (drop), or restore with the jax that saved it"
            ) from error


def jax_array(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    sharding: jax.sharding.Sharding,
    rank: int | None = None,
) -> JaxArray:
    """A jax array of ``shape``; ``sharding`` splits its first ``rank`` dimensions, all if ``rank`` is None.

    Raises LayoutError, naming the tensor, if the sharding cannot split it.
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
        region = Region(_box(index, shape))
        devices.setdefault(region, []).append(SingleDeviceSharding(device, memory_kind=kind))
    places = tuple(map(tuple, devices.values()))
    return JaxArray(shape, dtype, sharding, tuple(devices), places, not adopts(sharding, dtype))


def default_device() -> DefaultDevice:
    """The default device of this thread; worker threads may have another."""
    import jax

    config: Any = jax.config  # its options are not annotated
    return DefaultDevice(config.jax_default_device)


def adopts(place: Place, dtype: str) -> bool:
    """True if an aligned buffer becomes the result itself, without a copy."""
    if isinstance(place, HostMemory):
        return True
    return dtype not in VALUE_BITS and _platforms(place) == {"cpu"}


def _platforms(place: jax.sharding.Sharding | DefaultDevice) -> set[str]:
    import jax

    if isinstance(place, DefaultDevice):
        device = place.device
        if isinstance(device, str):
            return {device}
        return {(jax.local_devices()[0] if device is None else device).platform}
    devices: Any = place.device_set
    return {device.platform for device in devices}


def put_at(array: Array, place: Place) -> Any:
    """The array on its devices; any copy is complete, so ``array`` may be freed.

    The plan has refused dtypes that jax would narrow in the caller's thread. Worker threads do not share that
    thread's settings, so 64 bits are enabled here.
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
    """jax's index of a shard as a box; dimensions that it omits are whole."""
    slices = tuple(index or ())
    slices += (slice(None),) * (len(shape) - len(slices))
    pairs = [s.indices(n)[:2] for s, n in zip(slices, shape, strict=True)]
    start, stop = zip(*pairs, strict=True) if pairs else ((), ())
    return Box(start, stop)
