"""Adds slices.json to checkpoints that Orbax saves, for programs that keep their CheckpointManager.

::

    from reshard.saving.orbax_manager import SliceSave

    manager = ocp.CheckpointManager(directory)
    manager.save(step, args=SliceSave(state))       # instead of ocp.args.StandardSave(state)

Orbax writes the data as always; ``slices.json`` is added to the item before the step is committed,
and becomes visible with it. Readers see a standard checkpoint, with this package or without. A manager ties an item to
one handler. So the manager that saved an item restores it by ``manager.restore(step)`` or with
``SliceRestore(target)``; any other manager takes ``ocp.args.StandardRestore``.

The classes derive from Orbax's, so they are made on first use: Orbax is not imported before.

The slices.json of a tree whose data Orbax writes: entries, and digests of the live arrays.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from reshard.checksums.sums import digest_text, sum_of_box
from reshard.errors import TreeError
from reshard.formats.base import TargetCheckpoint, TargetTensor
from reshard.formats.contents import Container, Encoding, Item
from reshard.formats.orbax.format import OrbaxForm
from reshard.formats.orbax.write_items import item_trees
from reshard.formats.orbax.write_metadata import slice_file
from reshard.formats.slices.slice_file import FILE_NAME, render_slices
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.saving.plan import elements, keep_data, live_tensors
from reshard.saving.tensors import DeviceShard, LiveTensor
from reshard.saving.tree import LiveLeaf, live_leaves
from reshard.storage.local.files import storage_errors, write_file
from reshard.variables.sharded.variable import ShardedVariable


class SliceRecord(Struct, frozen=True):
    """The slices of a tree, and the data whose digests this process computes.

    Attributes:
        shards: the shards of each tensor whose digests this process computes.
    """

    target: TargetCheckpoint
    shards: Mapping[str, tuple[DeviceShard, ...]]

    def sums(self) -> dict[str, int]:
        """The contribution of this process's shards to each tensor's CRC-64/NVME (its linear part)."""
        return {
            name: _sum(self.target.tensors[name].spec, shards)
            for name, shards in self.shards.items()
        }

    def render(self, sums: Mapping[str, int], files: Mapping[str, bytes]) -> bytes:
        """The bytes of slices.json.

        Args:
            sums: the contributions of all processes, added up.
            files: the item's other metadata files, whose digests are recorded.
        """
        (tree,) = item_trees(self.target)
        digests = {
            name: digest_text(value, self.target.tensors[name].spec.nbytes)
            for name, value in sums.items()
        }
        return render_slices(slice_file(tree, digests, files))


def record_slices(tree: Any, process: int, count: int) -> SliceRecord:
    """Records the slices of a tree as Orbax stores it, and keeps its data; shards of a ShardedVariable are children.

    Raises TreeError, naming every leaf that cannot be recorded.
    """
    leaves = live_leaves(_opened(tree))
    # Orbax refuses arrays that one process has alone, so those that this process has whole are copies.
    own = {
        x.leaf.name for x in leaves if count > 1 and getattr(x.array, "is_fully_addressable", False)
    }
    tensors = live_tensors(leaves, own)
    target = _checkpoint(leaves, tensors)
    item_trees(target)  # refuses names that collide
    return SliceRecord(target, _shards_of(tensors, process))


def _checkpoint(leaves: Sequence[LiveLeaf], tensors: Sequence[LiveTensor]) -> TargetCheckpoint:
    by_path = {t.leaf.path: t.leaf for t in tensors}
    return TargetCheckpoint(
        Container("v0", (Item("", "", is_tree=True),)),
        {t.name: _target(t) for t in tensors},
        [by_path.get(leaf.leaf.path, leaf.leaf) for leaf in leaves],
        {},
        OrbaxForm(),
    )


def _shards_of(
    tensors: Sequence[LiveTensor], process: int
) -> Mapping[str, tuple[DeviceShard, ...]]:
    """The shards of each tensor that the process holds first, with their data kept."""
    mine = {t.name: [s for s in t.shards if s.holders[0] == process] for t in tensors}
    wanted = {id(shard.data) for shards in mine.values() for shard in shards}
    held = keep_data({t.name: t for t in tensors}, wanted)
    boxes = {name: {s.box for s in shards} for name, shards in mine.items()}
    return {n: tuple(s for s in t.shards if s.box in boxes[n]) for n, t in held.items()}


def _opened(tree: Any) -> Any:
    import jax

    return jax.tree.map(
        lambda node: list(node.variables) if isinstance(node, ShardedVariable) else node,
        tree,
        is_leaf=lambda node: isinstance(node, ShardedVariable),
    )


def _target(tensor: LiveTensor) -> TargetTensor:
    whole = Grid.whole(tensor.shape)
    spec = TensorSpec(tensor.name, tensor.shape, tensor.dtype, whole, layout=tensor.layout)
    return TargetTensor(spec, Encoding(), tensor.leaf, tensor.partition, tensor.slices)


def _sum(spec: TensorSpec, shards: tuple[DeviceShard, ...]) -> int:
    total = 0
    for shard in shards:
        data = elements(shard.data, shard.box.relative_to(shard.box.start))
        little = data.astype(data.dtype.newbyteorder("<"), copy=False)
        total ^= sum_of_box(little, shard.box, spec.shape)
    return total


NAMES = ("SliceSave", "SliceRestore", "SliceHandler")

_METADATA_FILES = ("_METADATA", "_sharding", "_strings.json", "array_metadatas/*")


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {NAMES}")
    return getattr(_classes(), name)


def _sums_file(process: int) -> str:
    return f"{FILE_NAME}.process_{process}"


def _check_save_args(save_args: Any) -> None:
    """Refuses casts while saving: the stored bytes would differ from those whose digests are recorded."""
    import jax

    if any(getattr(leaf, "dtype", None) is not None for leaf in jax.tree.leaves(save_args)):
        raise TreeError(
            "save_args cast arrays while they are saved, so the digests of the live arrays would not match "
            "the stored bytes; cast the arrays first, or use ocp.args.StandardSave"
        )


async def _write_sums(record: SliceRecord, directory: Any, process: int) -> None:
    """Writes this process's contributions to the digests, for the process that commits."""
    path = Path(getattr(directory, "path", directory)) / _sums_file(process)
    document = {name: f"{value:x}" for name, value in record.sums().items()}
    write_file(str(path), json.dumps(document).encode())


def _write_slices(record: SliceRecord, directory: Path) -> None:
    """Writes slices.json, from the contributions of all processes."""
    sums: dict[str, int] = {}
    parts = sorted(directory.glob(_sums_file(0)[:-1] + "*"))
    with storage_errors("read", directory):
        for part in parts:
            for name, value in json.loads(part.read_bytes()).items():
                sums[name] = sums.get(name, 0) ^ int(value, 16)
        found = sorted(path for pattern in _METADATA_FILES for path in directory.glob(pattern))
        files = {str(p.relative_to(directory)): p.read_bytes() for p in found if p.is_file()}
        for part in parts:
            part.unlink()
    write_file(str(directory / FILE_NAME), record.render(sums, files))


@cache
def _classes() -> SimpleNamespace:
    import jax
    import orbax.checkpoint as ocp

    class SliceHandler(ocp.StandardCheckpointHandler):  # type: ignore[misc]  # Orbax has no types here
        """Orbax's standard handler, with the same arguments; it also writes slices.json."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._record: SliceRecord | None = None
            # Readers of the checkpoint find Orbax's own handler recorded, not this class.
            self.typestr = ocp.StandardCheckpointHandler.typestr

        async def async_save(self, directory: Any, *, args: Any) -> Any:
            """Saves as Orbax does; the digests are computed in the background, beside its writes."""
            process = jax.process_index()
            self._record = record_slices(args.item, process, jax.process_count())
            futures = await super().async_save(directory, args=args)
            summing = _write_sums(self._record, directory, process)
            future = ocp.future.CommitFutureAwaitingContractedSignals(summing, name="slices")
            return [*(futures or []), future]

        def finalize(self, directory: Any) -> None:
            """Called by one process, after the writes of all processes and before the commit."""
            super().finalize(directory)
            if self._record is not None:
                record, self._record = self._record, None
                _write_slices(record, Path(directory))

    @ocp.args.register_with_handler(SliceHandler, for_save=True)
    @dataclasses.dataclass
    class SliceSave(ocp.args.StandardSave):  # type: ignore[misc]  # Orbax has no types here
        """Like ``ocp.args.StandardSave``, with slice metadata; TreeError if it casts."""

        def __post_init__(self) -> None:
            super().__post_init__()
            _check_save_args(self.save_args)

    @ocp.args.register_with_handler(SliceHandler, for_restore=True)
    @dataclasses.dataclass
    class SliceRestore(ocp.args.StandardRestore):  # type: ignore[misc]  # Orbax has no types here
        """Like ``ocp.args.StandardRestore``, for the manager that saved; other managers take either."""

    return SimpleNamespace(
        SliceHandler=SliceHandler, SliceSave=SliceSave, SliceRestore=SliceRestore
    )
