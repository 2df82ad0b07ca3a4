"""Run a plan: hand out tasks within the byte budget, add up what they did, stop at the first error.

One thread hands out and adds up; tasks run on any ``concurrent.futures`` executor. A task starts
when its bytes are free, so buffers never exceed the plan's ``max_memory``. Chunks that are written
in pieces are closed (checksum trailer) when their last byte is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from reshard.engine.blame import storage_errors_of
from reshard.engine.buffers import ArenaPool
from reshard.engine.closing import close_chunk
from reshard.engine.copy import execute
from reshard.engine.digest import CRC64NVME, finish
from reshard.engine.hand_out import hand_out
from reshard.engine.report import Progress
from reshard.engine.task import CastStats, ChunkPart, Task, TaskResult
from reshard.engine.tasks import Ends
from reshard.errors import VerificationError
from reshard.layout.grid import Index
from reshard.planning.cost import RECORD_BYTES
from reshard.planning.move import Move, Plan


@dataclass(slots=True)
class MoveState:
    """What is known of a move while it runs.

    Attributes:
        open_chunks: per chunk that is not closed, its CRC contribution and the bytes that arrived.
    """

    source_crc: int = 0
    target_crc: int = 0
    moved_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    closed_chunks: int = 0
    has_digest: bool = True
    cast: CastStats = field(default_factory=CastStats)
    open_chunks: dict[Index, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What became of a move: digests as 16 hex digits, None where chunks travelled encoded."""

    source_digest: str | None
    target_digest: str | None
    moved_bytes: int
    read_bytes: int
    written_bytes: int
    cast: CastStats


def run(
    plan: Plan,
    batches: Iterable[tuple[Task, ...]],
    ends: Ends,
    root: str,
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[MoveResult]:
    """Carries out all batches of ``plan`` between ``ends``, below ``root``; one result per move, in order.

    Raises the first error of any task, after the running ones have ended; VerificationError where
    what was written is not what was read.
    """
    ledger = _Ledger(plan, ends, root, progress)
    # Buffers are lent within this process only; elsewhere every task makes its own.
    in_threads = executor is None or isinstance(executor, ThreadPoolExecutor)
    pool = ArenaPool(plan.max_memory) if in_threads else None
    work = partial(execute, root=root, pool=pool, put=ends.writer.put)
    ended = hand_out(batches, work, _batch_bytes, plan.max_memory, plan.workers, executor)
    with closing(ended):
        for results in ended:
            for result in results:
                ledger.add(result)
    return ledger.results()


def _batch_bytes(batch: tuple[Task, ...]) -> int:
    """Tasks of a batch follow one another, but what they know of their chunks is there from the start."""
    chunks = sum(len(t.sources) + len(t.targets) for t in batch[1:])
    return max(t.memory_bytes for t in batch) + RECORD_BYTES * chunks


class _Ledger:
    """Adds up what tasks did, and closes the chunks that are complete."""

    def __init__(
        self,
        plan: Plan,
        ends: Ends,
        root: str,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._plan = plan
        self._ends = ends
        self._root = root
        self._progress = progress
        self._states = [MoveState() for _ in plan.moves]
        # Sums over all moves: taken once, since tasks that end may be as many as the moves.
        self._total_bytes = sum(_moved_bytes(m) for m in plan.moves)
        self._total_tasks = plan.tasks
        self._moved_bytes = 0
        self._tasks_done = 0

    def add(self, result: TaskResult) -> None:
        state, move = self._states[result.move], self._plan.moves[result.move]
        state.source_crc ^= result.source_crc
        state.target_crc ^= result.target_crc
        state.moved_bytes += result.moved_bytes
        state.read_bytes += result.read_bytes
        state.has_digest &= result.has_digest
        state.cast = state.cast + result.cast
        for part in result.parts:
            self._add_part(move, state, part)
        self._moved_bytes += result.moved_bytes
        self._tasks_done += 1
        self._tell(move.placement.target)

    def results(self) -> list[MoveResult]:
        """Checks that every chunk of every move is complete, and that digests agree."""
        return [
            _checked_result(move, state)
            for move, state in zip(self._plan.moves, self._states, strict=True)
        ]

    def _add_part(self, move: Move, state: MoveState, part: ChunkPart) -> None:
        stored_bytes = part.stored_bytes
        if stored_bytes is None:
            crc, nbytes = state.open_chunks.pop(part.index, (0, 0))
            crc, nbytes = crc ^ part.crc32c, nbytes + part.nbytes
            if nbytes < move.target.spec.storage.box(part.index).size * move.target.spec.itemsize:
                state.open_chunks[part.index] = (crc, nbytes)
                return
            stored_bytes = self._close(move, part.index, crc)
        state.closed_chunks += 1
        state.written_bytes += stored_bytes

    def _close(self, move: Move, index: Index, crc: int) -> int:
        spec = move.target.spec
        file = self._ends.writer.chunk_file(spec.name, index)
        stored_bytes = spec.itemsize
        for n in spec.stored_shape(index):
            stored_bytes *= n
        has_trailer = self._ends.encodings[spec.name].checksum
        with storage_errors_of(spec.name):
            return close_chunk(f"{self._root}/{file}", crc if has_trailer else None, stored_bytes)

    def _tell(self, tensor: str) -> None:
        if self._progress is not None:
            self._progress(
                Progress(
                    self._moved_bytes,
                    self._total_bytes,
                    self._tasks_done,
                    self._total_tasks,
                    tensor,
                )
            )


def _moved_bytes(move: Move) -> int:
    return move.placement.source_box.size * move.source.spec.itemsize


def _checked_result(move: Move, state: MoveState) -> MoveResult:
    name = move.placement.target
    chunks = move.target.spec.storage.count
    if state.closed_chunks != chunks or state.moved_bytes != _moved_bytes(move):
        raise VerificationError(
            f"{name!r}: {state.closed_chunks} of {chunks} chunks were completed and {state.moved_bytes} of "
            f"{_moved_bytes(move)} bytes moved; this is a defect of the program, please report it with the plan"
        )
    amounts = (state.moved_bytes, state.read_bytes, state.written_bytes, state.cast)
    if not state.has_digest:
        return MoveResult(None, None, *amounts)
    source = finish(CRC64NVME, state.source_crc, _moved_bytes(move))
    target = finish(CRC64NVME, state.target_crc, move.target.spec.nbytes)
    if source != target and not move.placement.is_cast and _keeps_order(move):
        raise VerificationError(
            f"{name!r}: what was written has digest {target:016x}, but what was read has {source:016x}; "
            "the output was discarded; check this machine's memory, then run again"
        )
    return MoveResult(f"{source:016x}", f"{target:016x}", *amounts)


def _keeps_order(move: Move) -> bool:
    """Whether source box and target tensor are the same row-major bytes."""
    placement = move.placement
    return (
        placement.axis_order == tuple(range(len(placement.axis_order)))
        and placement.target_box.shape == move.target.spec.shape
    )
