"""TensorState: a tensor while it is restored. Restored: its value, and the bytes that were read for it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from reshard.checksums.sums import digest_text
from reshard.engine.decode.chunk_memory import ChunkMemory
from reshard.engine.limits import Limits
from reshard.engine.recorded_digest import check_recorded
from reshard.engine.task import CastStats
from reshard.formats.codecs import is_seekable
from reshard.geometry.grid import Index
from reshard.restoring.read_chunk import ChunkResult
from reshard.restoring.read_groups import ReadGroup
from reshard.restoring.tensor_read import TensorRead


class Restored(Struct, frozen=True):
    """The value of one tensor, and the bytes that were read for it.

    Attributes:
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes that had to be read: the needed elements of raw chunks, all of any other.
        is_verified: whether its bytes were compared with the recorded digest.
    """

    value: Any
    read_bytes: int
    needed_bytes: int
    cast: CastStats
    is_verified: bool


class TensorState(Struct):
    """A tensor while it is restored.

    Attributes:
        digest: the recorded one; None if there is none, or if not every element is read exactly once.
        placed: the result of ``Output.place`` for each region.
        memory: to read one chunk.
        seen: chunks that were read; a chunk is read again if the budget splits a group.
    """

    read: TensorRead
    groups: list[ReadGroup]
    digest: str | None
    placed: list[Any]
    memory: ChunkMemory
    seen: set[Index] = field(default_factory=set)
    crc: int = 0
    cast: CastStats = field(default_factory=CastStats)
    read_bytes: int = 0
    needed_bytes: int = 0

    @classmethod
    def of(cls, read: TensorRead, limits: Limits, verify: bool) -> TensorState:
        groups, is_split = read.read_groups(limits.max_memory)
        digest = read.stored.digest if verify and read.covers and not is_split else None
        memory = read.chunk_memory(groups, limits.max_memory // limits.workers)
        return cls(read, groups, digest, [None] * len(read.output.regions), memory)

    def add(self, index: Index, result: ChunkResult) -> None:
        """Adds the result of a chunk; the needed bytes of a chunk that is read twice count once."""
        self.crc ^= result.crc
        self.cast = self.cast + result.cast
        self.read_bytes += result.read_bytes
        if index not in self.seen or is_seekable(self.read.stored.encoding):
            self.needed_bytes += result.needed_bytes
        self.seen.add(index)

    def restored(self) -> Restored:
        """The value; CorruptError if its digest differs from the recorded one."""
        self._check_digest()
        value = self.read.output.assemble(self.placed)
        return Restored(
            value, self.read_bytes, self.needed_bytes, self.cast, self.digest is not None
        )

    def _check_digest(self) -> None:
        if self.digest is not None:
            spec = self.read.stored.spec
            found = digest_text(self.crc, spec.nbytes)
            check_recorded(spec.name, found, self.digest)
