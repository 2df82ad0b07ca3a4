"""Accumulator: adds up the results of tasks, and closes chunks that have their last byte.

A run that resumes another begins with the results that the other recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from reshard.checksums.coverage import PRIME, coverage_of
from reshard.checksums.tensor_digest import CRC64NVME, finish
from reshard.engine.error_context import about_tensor
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.engine.task import CastStats, ChunkPart, TaskResult
from reshard.engine.write.chunk_files import close_chunk, raw_bytes
from reshard.errors import VerificationError
from reshard.formats.file_map import Place
from reshard.geometry.box import Box
from reshard.geometry.grid import Index
from reshard.planning.move import Move, Plan


class StoredRange(Struct, frozen=True):
    """Bytes of a file that hold a complete chunk."""

    path: str
    nbytes: int
    offset: int


class MoveState(Struct):
    """The sums of a move while it runs.

    Attributes:
        open_chunks: per chunk that is not closed, its CRC contribution and the bytes that arrived.
    """

    source_crc: int = 0
    expected_crc: int = 0
    target_crc: int = 0
    source_cover: int = 0
    target_cover: int = 0
    moved_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    closed_chunks: int = 0
    has_digest: bool = True
    cast: CastStats = field(default_factory=CastStats)
    open_chunks: dict[Index, tuple[int, int]] = field(default_factory=dict)


class MoveResult(Struct, frozen=True):
    """The result of a move: digests as 16 hex digits, None where chunks were copied encoded."""

    source_digest: str | None
    target_digest: str | None
    moved_bytes: int
    read_bytes: int
    written_bytes: int
    cast: CastStats


Close = Callable[[Move, Index, int, bool], int]
"""Ends a chunk of a move, given its CRC32C contribution and whether that follows it; its size in bytes."""


class Accumulator:
    """Adds up the results of tasks, of one run or of several, and closes the chunks that are complete."""

    def __init__(
        self,
        plan: Plan,
        output: TargetOutput,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._plan = plan
        self._output = output
        self._progress = progress
        self._states = [MoveState() for _ in plan.moves]
        # Sums over all moves: taken once, since tasks that end may be as many as the moves.
        self._total_bytes = sum(_moved_bytes(m) for m in plan.moves)
        self._total_tasks = plan.tasks
        self._moved_bytes = 0
        self._resumed_bytes = 0
        self._tasks_done = 0
        self._by_host: dict[str, int] = {}

    def expect(self, total_bytes: int, total_tasks: int) -> None:
        """Notes how much there is to do, where that is only a part of the plan."""
        self._total_bytes, self._total_tasks = total_bytes, total_tasks

    @property
    def tasks_done(self) -> int:
        """Tasks that are done, those of earlier runs included."""
        return self._tasks_done

    @property
    def moves(self) -> Sequence[Move]:
        """The moves of the plan."""
        return self._plan.moves

    @property
    def moved_bytes(self) -> int:
        """Bytes of the source that are in their places, earlier runs included."""
        return self._moved_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the source that the plan moves."""
        return self._total_bytes

    @property
    def resumed_bytes(self) -> int:
        """Those of ``moved_bytes`` that an earlier run put there."""
        return self._resumed_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes of the target's chunks that are in their files, earlier runs included."""
        closed = sum(state.written_bytes for state in self._states)
        return closed + sum(n for s in self._states for _, n in s.open_chunks.values())

    def take(self, result: TaskResult, *, is_resumed: bool = True) -> None:
        """Counts a result of an earlier run, or of a part of this conversion; no file is touched."""
        self._count(result, _closed_bytes)
        if is_resumed:
            self._resumed_bytes += result.moved_bytes

    def add(self, result: TaskResult, host: str = "") -> list[StoredRange]:
        """Counts a result of this run, and closes the chunks that are complete now; returns where they are in local files.

        ``host`` is the one that made it, where that is not this one.
        """
        if host:
            self._by_host[host] = self._by_host.get(host, 0) + result.moved_bytes
        complete = self._count(result, self._close)
        move = self._plan.moves[result.move]
        self.report_progress(move.placement.target)
        if not self._output.is_local:
            return []
        return [
            StoredRange(f"{self._output.root}/{place.file}", nbytes, place.start)
            for index, nbytes in complete
            for place in self._places(move, index)
        ]

    def report_progress(self, tensor: str) -> None:
        """Reports how far the run is."""
        if self._progress is not None:
            self._progress(
                Progress(
                    self._moved_bytes,
                    self._total_bytes,
                    self._tasks_done,
                    self._total_tasks,
                    tensor,
                    resumed_bytes=self._resumed_bytes,
                    hosts=self._by_host,
                )
            )

    def results(self) -> list[MoveResult]:
        """The result of each move; raises VerificationError where a chunk is not complete or digests differ."""
        return [
            _checked_result(move, state)
            for move, state in zip(self._plan.moves, self._states, strict=True)
        ]

    def _count(self, result: TaskResult, close: Close) -> list[tuple[Index, int]]:
        """Counts a result; the chunks that are complete now, with their sizes as they are stored."""
        state, move = self._states[result.move], self._plan.moves[result.move]
        state.source_crc ^= result.source_crc
        state.expected_crc ^= (
            result.source_crc if result.expected_crc is None else result.expected_crc
        )
        state.target_crc ^= result.target_crc
        state.source_cover += result.source_cover
        state.target_cover += result.target_cover
        state.moved_bytes += result.moved_bytes
        state.read_bytes += result.read_bytes
        state.has_digest &= result.has_digest
        state.cast = state.cast + result.cast
        has_trailer = self._is_checked(move)
        sizes = [(p.index, _add_part(move, state, p, has_trailer, close)) for p in result.parts]
        self._moved_bytes += result.moved_bytes
        self._tasks_done += 1
        return [(index, nbytes) for index, nbytes in sizes if nbytes is not None]

    def _is_checked(self, move: Move) -> bool:
        return self._output.encodings[move.placement.target].checksum

    def _close(self, move: Move, index: Index, crc: int, has_trailer: bool) -> int:
        nbytes = decoded_bytes(move, index)
        with about_tensor(move.target.spec.name):
            for place in self._places(move, index):
                if place.offset is None:
                    path = f"{self._output.root}/{place.file}"
                    close_chunk(path, crc if has_trailer else None, nbytes)
        return raw_bytes(nbytes, has_trailer=has_trailer)

    def _places(self, move: Move, index: Index) -> tuple[Place, ...]:
        return self._output.places(move.target.spec.name, index)


def _add_part(
    move: Move, state: MoveState, part: ChunkPart, has_trailer: bool, close: Close
) -> int | None:
    """Counts a part of a chunk; returns the chunk's stored size, or None where it is not complete."""
    stored_bytes = part.stored_bytes
    if stored_bytes is None:
        crc, nbytes = state.open_chunks.pop(part.index, (0, 0))
        crc, nbytes = crc ^ part.crc32c, nbytes + part.nbytes
        if nbytes < move.target.spec.storage.box(part.index).size * move.target.spec.itemsize:
            state.open_chunks[part.index] = (crc, nbytes)
            return None
        stored_bytes = close(move, part.index, crc, has_trailer)
    state.closed_chunks += 1
    state.written_bytes += stored_bytes
    return stored_bytes


def decoded_bytes(move: Move, index: Index) -> int:
    """Bytes of a raw target chunk, padding included, checksum not."""
    spec = move.target.spec
    return math.prod(spec.stored_shape(index)) * spec.itemsize


def _closed_bytes(move: Move, index: Index, _crc: int, has_trailer: bool) -> int:
    return raw_bytes(decoded_bytes(move, index), has_trailer=has_trailer)


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
    _check_covered(move, state)
    amounts = (state.moved_bytes, state.read_bytes, state.written_bytes, state.cast)
    if not state.has_digest:
        return MoveResult(None, None, *amounts)
    source = finish(CRC64NVME, state.source_crc, _moved_bytes(move))
    target = finish(CRC64NVME, state.target_crc, move.target.spec.nbytes)
    if state.target_crc != state.expected_crc:
        expected = finish(CRC64NVME, state.expected_crc, move.target.spec.nbytes)
        raise VerificationError(
            f"{name!r}: what was written has digest {target:016x}, but what was read "
            f"{'gives' if expected != source else 'has'} {expected:016x}; "
            "the output was discarded; check this machine's memory, then run again"
        )
    return MoveResult(f"{source:016x}", f"{target:016x}", *amounts)


def _check_covered(move: Move, state: MoveState) -> None:
    """A digest alone misses a piece of zeros that is absent, or a piece that is counted twice."""
    placement = move.placement
    for done, cover, box in (
        ("read", state.source_cover, Box.full(placement.shape)),
        ("written", state.target_cover, placement.target_box),
    ):
        if cover % PRIME != coverage_of(box):
            raise VerificationError(
                f"{placement.target!r}: not every element was {done} exactly once; the output was discarded; this "
                "is a defect of the program, please report it with the plan"
            )
