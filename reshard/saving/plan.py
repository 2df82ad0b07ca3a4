"""Plans a save: the tensors, their chunks, and the chunks that this process writes.

A save is an Orbax checkpoint; ``convert`` makes other formats of it.

The shape of a live tensor's chunks, and which process writes each.

A chunk is written by a process that has all of it. If a chunk spans the shards of several processes, chunks are made
smaller until none does.

One whole chunk in host memory: a view of the shard that contains it, or a copy from several shards.

The elements of a shard are a view if the data is already in host memory, else a copy from the device. A view of a jax array on
the CPU keeps its memory alive, and a computation that donates the array then takes new memory, so the view never changes. jax
keeps the host copy of an array as long as the array itself. So each copy is made through a new array object over the same
device memory, which is dropped after use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, LayoutError, MemoryBudgetError, PlanError, TreeError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.chunking import (
    MAX_CHUNKS,
    MERGE_BELOW_BYTES,
    TINY_BYTES,
    chunk_shape,
    serving_chunk,
)
from reshard.formats.codecs import encoder_bytes
from reshard.formats.contents import Container, Item
from reshard.formats.file_map import FileMap
from reshard.formats.orbax.format import OrbaxForm
from reshard.geometry.dtypes import numpy_dtype, storage_bytes
from reshard.geometry.grid import Box, Grid, Index
from reshard.geometry.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import Layout, split
from reshard.saving.options import GivenLayouts, SaveOptions, bare_spec, with_given_layouts
from reshard.saving.tensors import DeviceShard, LiveTensor, live_tensor, sharding_problem
from reshard.saving.tree import LiveLeaf, refuse
from reshard.storage.base import ON_DISK, Traits


class OwnChunk(Struct, frozen=True):
    """A chunk of a tensor that this process writes."""

    name: str
    index: Index
    box: Box


def storage_chunk(
    tensor: LiveTensor, readers: Sequence[Layout], chunk_bytes: int, process_count: int
) -> tuple[int, ...]:
    """Shape of the tensor's chunks.

    Args:
        readers: layouts of later readers, whose shards should be whole chunks.

    Raises PlanError if only tiny chunks would serve all readers, LayoutError if a layout does not fit
    the tensor.
    """
    grids = _grids(tensor, readers) if readers else []
    for merge_below in _merge_limits(TINY_BYTES if readers else MERGE_BELOW_BYTES):
        chunk = _chunk(tensor, grids, merge_below, chunk_bytes)
        grid = Grid.regular(tensor.shape, chunk)
        if process_count == 1 or all(writers(tensor, box) for box in grid.boxes()):
            return _checked(tensor, grid, chunk)
    raise PlanError(
        f"{tensor.name!r} of shape {list(tensor.shape)}: its shards are on processes in a way that no "
        "regular chunks follow; lay it out evenly over the mesh first"
    )


def _grids(tensor: LiveTensor, readers: Sequence[Layout]) -> list[Grid]:
    """The grids whose boxes should be whole chunks; the shards of a "mod" table are not boxes."""
    grids = [_slices(tensor, layout) for layout in readers]
    is_mod = any(shard.step > 1 for shard in tensor.shards)
    return grids if is_mod else [tensor.chunked_as, *grids]


def _merge_limits(largest: int) -> Iterator[int]:
    while largest:
        yield largest
        largest //= 2
    yield 0


def _chunk(
    tensor: LiveTensor, grids: Sequence[Grid], merge_below: int, chunk_bytes: int
) -> tuple[int, ...]:
    itemsize = storage_bytes(tensor.dtype)
    if not grids:
        return chunk_shape(tensor.chunked_as, itemsize, merge_below, chunk_bytes)
    return serving_chunk(
        grids, itemsize, tensor.name, merge_below=merge_below, split_above=chunk_bytes
    )


def _slices(tensor: LiveTensor, layout: Layout) -> Grid:
    spec = bare_spec(tensor)
    return split(spec, spec, layout).slices


def _checked(tensor: LiveTensor, grid: Grid, chunk: tuple[int, ...]) -> tuple[int, ...]:
    if grid.count > MAX_CHUNKS:
        raise PlanError(
            f"{tensor.name!r} of shape {list(tensor.shape)} would be written in {grid.count} chunks, but at most "
            f"{MAX_CHUNKS} per tensor are allowed, since file systems slow down with more; allow larger ones "
            "(chunk_bytes)"
        )
    return chunk


def writers(tensor: LiveTensor, box: Box) -> tuple[int, ...]:
    """The processes that have all of ``box``, in rising order."""
    found: tuple[int, ...] | None = None
    for shard in tensor.touching(box):
        if found is None:
            found = shard.holders
        elif found is not shard.holders and found != shard.holders:
            found = tuple(p for p in found if p in shard.holders)
    return found or ()


def own_chunks(
    tensors: Sequence[tuple[LiveTensor, Grid]], process: int, process_count: int
) -> list[OwnChunk]:
    """The chunks that this process writes.

    If several processes have a chunk, the one with the fewest bytes so far writes it; among equals, the lowest. Every
    process comes to the same answer.
    """
    mine: list[OwnChunk] = []
    loads = [0] * process_count
    for tensor, grid in tensors:
        itemsize = storage_bytes(tensor.dtype)
        for index in grid.indices():
            box = grid.box(index)
            owner = _least_loaded(tensor, box, loads)
            loads[owner] += box.size * itemsize
            if owner == process:
                mine.append(OwnChunk(tensor.name, index, box))
    return mine


def _least_loaded(tensor: LiveTensor, box: Box, loads: Sequence[int]) -> int:
    if len(loads) == 1:
        return 0
    return min(writers(tensor, box), key=lambda process: (loads[process], process))


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
    moved = [
        local.size * spec.itemsize
        for shard, local, _ in found
        if shard.data is not None and not on_host(shard.data)
    ]
    if _is_one(found, box, stored) and (moved or _is_run(found[0][0], found[0][1])):
        return sum(moved)
    return math.prod(stored) * spec.itemsize + max(moved, default=0)


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


class SavePlan(Struct, frozen=True):
    """The part of a save that this process writes.

    Attributes:
        target: the whole checkpoint.
        files: its files.
        tensors: live tensors by name, with the data that this process has.
        chunks: the chunks that this process writes.
        need_bytes: memory that the largest chunk of each tensor takes, by name.
    """

    target: TargetCheckpoint
    files: FileMap
    tensors: Mapping[str, LiveTensor]
    chunks: tuple[OwnChunk, ...]
    need_bytes: Mapping[str, int]

    @property
    def lines(self) -> bytes:
        """The plan as text, one line per leaf; equal in all processes that save the same tree."""
        lines = [self._line(leaf.name) for leaf in self.target.leaves]
        return "\n".join(lines).encode()

    def _line(self, name: str) -> str:
        tensor = self.target.tensors.get(name)
        if tensor is None:
            return f"{name!r} without an array"
        spec, live = tensor.spec, self.tensors[name]
        holders = sorted({p for shard in live.shards for p in shard.holders})
        return (
            f"{name!r} of {spec.dtype}{list(spec.shape)} in chunks of {list(spec.chunk_shape or ())}, "
            f"{len(live.shards)} shards in processes {holders}"
        )


def plan_save(
    leaves: Sequence[LiveLeaf],
    own: Collection[str],
    given: GivenLayouts,
    options: SaveOptions,
    process: int,
    count: int,
) -> SavePlan:
    """Plans a save; nothing is written and no element is copied.

    ``own``: names of arrays that every process has as a copy of its own.

    Raises TreeError, LayoutError, PlanError or FormatError, naming the tensors, for a tree or layout that cannot
    be saved; MemoryBudgetError if a single chunk does not fit into ``max_memory``.
    """
    tensors = with_given_layouts(live_tensors(leaves, own), given)
    target = target_checkpoint(leaves, tensors, options, count)
    specs = [target.tensors[t.name].spec for t in tensors]
    mine = own_chunks([(t, s.storage) for t, s in zip(tensors, specs, strict=True)], process, count)
    by_name = {t.name: t for t in tensors}
    need = {
        name: chunk_bytes_needed(
            by_name[name],
            target.tensors[name],
            ocdbt=options.ocdbt,
            traits=options.traits,
        )
        for name in dict.fromkeys(chunk.name for chunk in mine)
    }
    _refuse_too_large(need, options.max_memory)
    return SavePlan(target, _files(target), by_name, tuple(mine), need)


def live_tensors(leaves: Sequence[LiveLeaf], own: Collection[str]) -> list[LiveTensor]:
    """The tensors among the leaves; every process has its own copy of those in ``own``.

    Raises TreeError, naming the arrays whose sharding does not cut them into boxes.
    """
    arrays = [leaf for leaf in leaves if leaf.leaf.tensor]
    found = {a.leaf.name: sharding_problem(getattr(a.array, "sharding", None)) for a in arrays}
    refuse({name: f"cannot be cut into boxes: {why}" for name, why in found.items() if why})
    return [live_tensor(leaf, is_own=leaf.leaf.name in own) for leaf in arrays]


def target_checkpoint(
    leaves: Sequence[LiveLeaf], tensors: Sequence[LiveTensor], options: SaveOptions, count: int
) -> TargetCheckpoint:
    """The checkpoint as it will be stored."""
    made = {t.name: _target_tensor(t, options, count) for t in tensors}
    # Leaves are found by path: the writer refuses two leaves with the same name, so it must see both.
    by_path = {t.leaf.path: t.leaf for t in tensors}
    item = options.item
    ordered = [replace(by_path.get(x.leaf.path, x.leaf), item=item) for x in leaves]
    container = Container(options.style, (Item(item, item, is_tree=True),))
    return TargetCheckpoint(container, made, ordered, {}, OrbaxForm(options.ocdbt))


def _target_tensor(tensor: LiveTensor, options: SaveOptions, count: int) -> TargetTensor:
    chunk = storage_chunk(tensor, options.chunks_for, options.chunk_bytes, count)
    storage = Grid.regular(tensor.shape, chunk)
    spec = TensorSpec(tensor.name, tensor.shape, tensor.dtype, storage, chunk, tensor.layout)
    return TargetTensor(spec, options.encoding, tensor.leaf, tensor.partition, tensor.slices)


def _files(target: TargetCheckpoint) -> FileMap:
    try:
        return target.form.plan(target)
    except LayoutError:
        raise
    except FormatError as error:
        raise TreeError(f"the tree cannot be saved: {error}") from error


def _refuse_too_large(need: Mapping[str, int], max_memory: int) -> None:
    if not need:
        return
    name = max(need, key=lambda n: need[n])
    if need[name] > max_memory:
        raise MemoryBudgetError(
            f"a chunk of {name!r} needs {format_bytes(need[name])} on its way to disk, more than max_memory "
            f"of {format_bytes(max_memory)}; allow at least {need[name]} bytes, or smaller chunks (chunk_bytes)",
            need[name],
        )


def total_bytes(target: TargetCheckpoint) -> int:
    """Uncompressed bytes of all chunks, padding included."""
    return sum(
        t.spec.storage.count
        * math.prod(t.spec.chunk_shape or t.spec.shape)
        * storage_bytes(t.spec.dtype)
        for t in target.tensors.values()
    )
