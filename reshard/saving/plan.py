"""Plans a save: the tensors, their chunks, and the chunks that this process writes.

A save is an Orbax checkpoint; ``convert`` makes other formats of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, LayoutError, MemoryBudgetError, TreeError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import Container, Item
from reshard.formats.file_map import FileMap
from reshard.formats.orbax.form import OrbaxForm
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec
from reshard.saving.chunks import OwnChunk, own_chunks, storage_chunk
from reshard.saving.given_layouts import GivenLayouts, with_given_layouts
from reshard.saving.host_chunk import chunk_bytes_needed
from reshard.saving.options import SaveOptions
from reshard.saving.shardings import sharding_problem
from reshard.saving.tensors import LiveTensor, live_tensor
from reshard.saving.tree import LiveLeaf, refuse


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
