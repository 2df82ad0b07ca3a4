"""Plan, Move and Price: what moves, by which strategy, at what cost. Frozen data, no I/O."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from reshard.geometry.grid import Grid
from reshard.geometry.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec, change_text
from reshard.planning.placement import Placement
from reshard.record_text import counted, several

Strategy = Literal["copy", "whole", "scatter", "weave", "block"]
"""How a move is done.

copy: identical chunks are copied as they are, encoded.
whole: each target chunk is one small source chunk: decoded, encoded and written in one go.
scatter: each source chunk is decoded once in a stream; its pieces go straight to their places in
  raw target chunks.
weave: as scatter, but adjacent source chunks are decoded in lock step, so that whole target rows are written.
block: target chunks are assembled in memory and written whole; for compressed targets, and if pieces would be too
  short. A block that exceeds the memory is cut, and then source chunks may be decoded more than once.
"""


class Side(Struct, frozen=True):
    """How the source or the target of a move stores its tensor.

    Attributes:
        codec: two sides with equal codec, dtype, chunk shape and cuts have identical bytes.
        raw: elements are at fixed offsets, so that a source can be read and a target written in pieces.
        stream_bytes: memory of one decoder (source) or of encoding one chunk (target).
        encoded_bytes: memory for the encoded bytes of a chunk that is decoded at once; 0 if that gains nothing.
        copies: how often each chunk of a target is written.
        in_order: the slices of a target within which chunks must be written one after the other, row-major; None where
            they can be written in any order.
        ends_with_chunk: whether a target lets go of ``stream_bytes`` once the chunk is written.
        is_distant: whether a source answers each request after a while, as a bucket does.
    """

    spec: TensorSpec
    codec: str
    raw: bool
    stream_bytes: int
    encoded_bytes: int = 0
    copies: int = 1
    in_order: Grid | None = None
    ends_with_chunk: bool = True
    is_distant: bool = False


class Price(Struct, frozen=True):
    """The cost of a move.

    Attributes:
        tasks: independent units of work.
        decoded_bytes: bytes decoded from source chunks, padding and repetition included.
        source_bytes: stored bytes of the source chunks that are touched; ``decoded / source`` is the amplification.
        written_bytes: bytes written, padding and checksums included.
        writes: contiguous writes.
        task_bytes: memory of one task.
        seconds: estimated processor time, for comparing strategies only; ``processor_time.py`` adds what it leaves out.
    """

    tasks: int
    decoded_bytes: int
    source_bytes: int
    written_bytes: int
    writes: int
    task_bytes: int
    seconds: float

    @property
    def amplification(self) -> float:
        return self.decoded_bytes / self.source_bytes if self.source_bytes else 1.0


class Move(Struct, frozen=True):
    """One placement with the strategy that carries it out.

    Attributes:
        units: boxes in the placement's coordinates; one task fills each.
        band_bytes: decoded bytes that each task moves at once.
        at_once: whether each task decodes source chunks at once instead of in a stream.
    """

    placement: Placement
    source: Side
    target: Side
    strategy: Strategy
    units: Grid
    band_bytes: int
    price: Price
    at_once: bool = False

    def __repr__(self) -> str:
        return f"Move({change_text(self.source.spec, self.target.spec)}, {self.strategy})"


class Plan(Struct, frozen=True):
    """Everything that moves, and what it costs.

    Attributes:
        max_memory: bytes that all buffers of the run together may take.
        allowed_bytes: bytes that were allowed for buffers, metadata and processes together; 0 if no limit was given.
        workers: tasks that run at the same time, if memory allows.
        metadata_bytes: memory that the checkpoint's index and the plan itself take.
        processes: that share the workers; 0 for threads of one process.
    """

    moves: tuple[Move, ...]
    max_memory: int
    workers: int
    metadata_bytes: int = 0
    allowed_bytes: int = 0
    processes: int = 0

    def __repr__(self) -> str:
        memory = f"{format_bytes(self.peak_bytes)} of {format_bytes(self.max_memory)} of buffers"
        headline = (
            f"{counted(len(self.moves), 'tensor')} in {counted(self.tasks, 'task')}, {memory}"
        )
        return several("Plan", headline, self.moves)

    @property
    def tasks(self) -> int:
        return sum(m.price.tasks for m in self.moves)

    @property
    def decoded_bytes(self) -> int:
        return sum(m.price.decoded_bytes for m in self.moves)

    @property
    def source_bytes(self) -> int:
        return sum(m.price.source_bytes for m in self.moves)

    @property
    def written_bytes(self) -> int:
        return sum(m.price.written_bytes for m in self.moves)

    @property
    def amplification(self) -> float:
        return self.decoded_bytes / self.source_bytes if self.source_bytes else 1.0

    @property
    def peak_bytes(self) -> int:
        """Buffers in memory at the worst moment; never above ``max_memory``."""
        return min(self.max_memory, peak_of((m.price for m in self.moves), self.workers))


def peak_of(prices: Iterable[Price], workers: int) -> int:
    """The most that ``workers`` tasks at once can take."""
    biggest: list[int] = []
    for price in prices:
        for _ in range(min(price.tasks, workers)):
            heapq.heappush(biggest, price.task_bytes)
            if len(biggest) > workers:
                heapq.heappop(biggest)
    return sum(biggest)
