"""An opened checkpoint: its tensors are restored when they are asked for, in any number of goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from reshard.engine.arguments import changes_of, limits_of, path_of
from reshard.engine.options import check_choice
from reshard.engine.task import CastStats
from reshard.errors import FormatError, StorageError
from reshard.formats.base import PathKey, Reader
from reshard.formats.detect import local_path, open_reader
from reshard.restoring.asked import read_target
from reshard.restoring.fitting import require_jax
from reshard.restoring.goals import Goal, Missing, Unexpected, Wish, goal_of
from reshard.restoring.nested import nested
from reshard.restoring.partitions import partitions_of
from reshard.restoring.placement import placement_of
from reshard.restoring.run import run
from reshard.restoring.tensor_state import Restored

if TYPE_CHECKING:
    from reshard.engine.arguments import PairRules, Rules
    from reshard.engine.arguments import Path as PathLike
    from reshard.engine.report import Progress
    from reshard.layout.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore took, in this process.

    Attributes:
        tensors: how many were restored.
        verified: how many of them have the digest that was recorded when they were written; others
            were written without one, or only a part of them was needed here.
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes without which this process's elements cannot be had: of raw chunks
            the elements themselves, of others each chunk once.
        casts: what casts lost, by name.
        seconds: wall time, without opening the checkpoint.
    """

    tensors: int
    verified: int
    read_bytes: int
    needed_bytes: int
    casts: Mapping[str, CastStats]
    seconds: float

    @property
    def amplification(self) -> float:
        """Bytes read over bytes needed; 1.0 where nothing was needed."""
        return self.read_bytes / self.needed_bytes if self.needed_bytes else 1.0


class OpenedCheckpoint:
    """A checkpoint whose metadata was read, and whose tensors can be restored later.

    Made by ``reshard.open_checkpoint``. It holds no file open; its folder must stay as it is.

    Attributes:
        path: as it was given.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = path_of("checkpoint", path)
        self._root = local_path(self.path)
        self._identity = _identity(self._root)  # before it is read: what comes after is noticed
        self._reader: Reader = open_reader(self.path)

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Shape, dtype, chunks and layout of every tensor, by name."""
        return MappingProxyType({n: t.spec for n, t in self._reader.tensors.items()})

    def restore(
        self,
        target: Any = None,
        layout: Any = None,
        partition: Any = None,
        select: Rules | None = None,
        cast: PairRules | None = None,
        *,
        drop: Rules | None = None,
        rename: PairRules | None = None,
        axis: int | None = None,
        partition_strategy: str | None = None,
        devices: Sequence[Any] | None = None,
        missing: Missing = "error",
        unexpected: Unexpected = "error",
        max_memory: int | str | None = None,
        workers: int | None = None,
        verify: bool = True,
        progress: Callable[[Progress], None] | None = None,
        report: Callable[[RestoreReport], None] | None = None,
    ) -> Any:
        """What ``reshard.restore`` with the same arguments gives.

        Raises StorageError where another checkpoint was put in this one's place since it was opened,
        also while it was being read.
        """
        check_choice("missing", missing, get_args(Missing))
        check_choice("unexpected", unexpected, get_args(Unexpected))
        if not (target is None and layout is None and partition is None):
            require_jax("a target, a layout and a partition make jax arrays")
        limits = limits_of(max_memory, workers)
        placement, changes = placement_of(layout)
        wish = Wish(
            changes + changes_of(select, drop, rename, cast),
            None if target is None else read_target(target),
            placement,
            partitions_of(partition, axis, partition_strategy, devices),
            missing,
            unexpected,
        )
        self._check_unchanged()
        started = time.perf_counter()
        goal = goal_of(self._reader, wish)
        try:
            restored = run(goal.reads, self._reader, limits, verify, progress)
        except (FormatError, StorageError):
            self._check_unchanged()  # what looks like damage may be of another checkpoint
            raise
        self._check_unchanged()
        if report is not None:
            report(_report(goal, restored, time.perf_counter() - started))
        return self._tree(goal, wish, restored)

    def _tree(self, goal: Goal, wish: Wish, restored: Sequence[Restored]) -> Any:
        values = dict(goal.values)
        values |= {r.name: done.value for r, done in zip(goal.reads, restored, strict=True)}
        if wish.target is not None:
            return wish.target.filled(values)
        trees = sum(item.is_tree for item in self._reader.container.items)
        leaves = [kept.leaf for kept in goal.leaves]
        paths = [((PathKey(leaf.item),) if trees > 1 else ()) + leaf.path for leaf in leaves]
        return nested((path, values[leaf.name]) for path, leaf in zip(paths, leaves, strict=True))

    def _check_unchanged(self) -> None:
        found = _identity(self._root)
        if found is None:
            raise StorageError(
                f"{self.path} is not there any more; it must stay until everything is restored"
            )
        if found != self._identity:
            raise StorageError(
                f"{self.path} is not the checkpoint that was opened: another was put in its place, or it was "
                "changed; open it again"
            )


def _identity(root: str) -> tuple[int, int, int] | None:
    """None where there is nothing. The number of a deleted folder may be a new one's, its time is not."""
    try:
        found = Path(root).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _report(goal: Goal, restored: Sequence[Restored], seconds: float) -> RestoreReport:
    casts = {r.name: d.cast for r, d in zip(goal.reads, restored, strict=True) if r.is_cast}
    return RestoreReport(
        len(restored),
        sum(done.is_verified for done in restored),
        sum(done.read_bytes for done in restored),
        sum(done.needed_bytes for done in restored),
        MappingProxyType(casts),
        seconds,
    )
