"""OpenedCheckpoint: its tensors are restored when asked for, in any number of calls."""

from __future__ import annotations

import itertools
import re
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack, get_args

from reshard.arguments import changes_of, check_choice, path_of
from reshard.engine.limits import limits_of
from reshard.errors import FormatError, LayoutWarning, StorageError, TreeError
from reshard.formats.base import PathKey, Reader, StoredTensor
from reshard.formats.registry import local_path, open_reader
from reshard.planning.rules import Rewrite, rewrites
from reshard.restoring.match import require_jax
from reshard.restoring.nested import nested
from reshard.restoring.options import Missing, RestoreArguments, Unexpected
from reshard.restoring.partitions import partitions_of
from reshard.restoring.plan import RestorePlan, RestoreRequest, plan_restore
from reshard.restoring.report import make_report
from reshard.restoring.run import run
from reshard.restoring.shardings import placement_of
from reshard.restoring.target_tree import read_target
from reshard.restoring.tensor_state import Restored
from reshard.signatures import takes_options
from reshard.streaming.shard_parts import shard_parts
from reshard.streaming.shard_stream import ShardStream
from reshard.streaming.slice_text import box_of
from reshard.streaming.tensor_stream import TensorStream

if TYPE_CHECKING:
    from reshard.arguments import PairRules, Rules
    from reshard.arguments import Path as PathLike
    from reshard.conversion.options import LayoutLike
    from reshard.geometry.box import Box
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.tensor_spec import TensorSpec
    from reshard.restoring.options import RestoreOptions


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

    @takes_options(RestoreArguments)
    def restore(
        self,
        like: Any = None,
        layout: Any = None,
        partition: Any = None,
        select: Rules | None = None,
        cast: PairRules | None = None,
        **options: Unpack[RestoreOptions],
    ) -> Any:
        """What ``reshard.restore`` with the same arguments gives.

        Raises StorageError where another checkpoint was put in this one's place since it was opened,
        also while it was being read.
        """
        asked = RestoreArguments(**options)
        check_choice("missing", asked.missing, get_args(Missing))
        check_choice("unexpected", asked.unexpected, get_args(Unexpected))
        if not (like is None and layout is None and partition is None):
            require_jax("like, a layout and a partition make jax arrays")
        limits = limits_of(asked.max_memory, asked.workers)
        placement, changes = placement_of(layout)
        wish = RestoreRequest(
            changes + changes_of(select, asked.drop, asked.rename, cast),
            None if like is None else read_target(like),
            placement,
            partitions_of(partition, asked.axis, asked.partition_strategy, asked.devices),
            asked.missing,
            asked.unexpected,
        )
        self._check_unchanged()
        started = time.perf_counter()
        plan = plan_restore(self._reader, wish)
        doubts = () if placement is None else placement.warnings([r.name for r in plan.reads])
        if asked.report is None:
            _warn(doubts)
        try:
            restored = run(plan.reads, self._reader, limits, asked.verify, asked.progress)
        except (FormatError, StorageError):
            self._check_unchanged()  # what looks like damage may be of another checkpoint
            raise
        self._check_unchanged()
        if asked.report is not None:
            asked.report(make_report(plan, restored, time.perf_counter() - started, doubts))
        return self._tree(plan, wish, restored)

    def stream(
        self,
        name: str,
        box: Box | str | None = None,
        dtype: str | None = None,
        *,
        max_memory: int | str | None = None,
    ) -> TensorStream:
        """A box of a tensor as row-major little-endian bytes, which are read when they are asked for.

        >>> stream = opened.stream("params/kernel", "0:128,:", "bfloat16")  # doctest: +SKIP
        >>> stream.nbytes, b"".join(stream)  # doctest: +SKIP

        Args:
            name: of a tensor of this checkpoint.
            box: ``"0:128,:"``, or a box; None for the whole tensor.
            dtype: what it is cast to, by the rules of ``convert``; None for what is stored.
            max_memory: bytes, or text such as ``"64MiB"``, of all buffers; the default is that of ``restore``.

        Raises TreeError where there is no such tensor, LayoutError for a box outside of it, PlanError for
        a cast that makes no sense, MemoryBudgetError where the budget is too small.
        """
        stored = self._stored(name)
        self._check_unchanged()
        cast = Rewrite(name, name) if dtype is None else _cast(stored, dtype)
        return TensorStream(
            self._reader,
            stored,
            box_of(name, stored.spec.shape, box),
            cast.dtype or stored.spec.dtype,
            limits_of(max_memory, None).max_memory,
            saturate=cast.saturate,
        )

    def stream_shard(
        self,
        shard: int,
        layout: LayoutLike = None,
        *,
        mesh: str | MeshLike | None = None,
        select: Rules = (),
        drop: Rules = (),
        rename: PairRules = (),
        cast: PairRules = (),
        max_memory: int | str | None = None,
    ) -> ShardStream:
        """What one device of a layout holds of every tensor, as one safetensors file.

        Args:
            shard: the device, counted from 0 in the mesh's row-major order; of tensors that are split by
                count or size, that part.
            layout, mesh, select, drop, rename, cast: as for ``reshard.plan``.
            max_memory: as for ``stream``.

        Raises what ``plan`` raises for such a layout, LayoutError where there is no such shard or two
        tensors cannot be told apart, PlanError where safetensors has no such dtype.
        """
        from reshard.planning.target_layouts import layout_of

        self._check_unchanged()
        found = layout_of(layout, mesh)
        parts = shard_parts(self._reader, found, changes_of(select, drop, rename, cast), shard)
        return ShardStream(self._reader, parts, limits_of(max_memory, None).max_memory)

    def _stored(self, name: str) -> StoredTensor:
        stored = self._reader.tensors.get(name)
        if stored is None:
            some = ", ".join(itertools.islice(self._reader.tensors, 5))
            more = ", …" if len(self._reader.tensors) > 5 else ""
            raise TreeError(
                f"{self.path} has no tensor {name!r}; it has {len(self._reader.tensors)} ({some}{more})"
            )
        return stored

    def _tree(self, plan: RestorePlan, wish: RestoreRequest, restored: Sequence[Restored]) -> Any:
        values = dict(plan.values)
        values |= {r.name: done.value for r, done in zip(plan.reads, restored, strict=True)}
        if wish.like is not None:
            return wish.like.filled(values)
        below_items = bool(self._reader.container.naming_items)
        leaves = [kept.leaf for kept in plan.leaves]
        paths = [((PathKey(leaf.item),) if below_items else ()) + leaf.path for leaf in leaves]
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


def _cast(stored: StoredTensor, dtype: str) -> Rewrite:
    """The cast, where a tensor may be cast so by name; else PlanError."""
    spec = stored.spec
    pattern = f"^{re.escape(spec.name)}$"
    keys = [spec.name] if stored.is_key and dtype != spec.dtype else []
    changes = changes_of((), (), (), [(pattern, dtype)])
    (rewrite,) = rewrites(changes, [spec.name], {spec.name: spec}, keys)
    return rewrite


def _identity(root: str) -> tuple[int, int, int] | None:
    """None where there is nothing. The number of a deleted folder may be a new one's, its time is not."""
    try:
        found = Path(root).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _warn(sentences: Sequence[str]) -> None:
    """Tells them at the line that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("reshard."):
        frame, level = frame.f_back, level + 1
    for sentence in sentences:
        warnings.warn(sentence, LayoutWarning, stacklevel=level)
