"""The state of a tensor during a restore, and its result."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from reshard.checksums.tensor_digest import CRC64NVME, finish
from reshard.engine.task import CastStats
from reshard.errors import CorruptError
from reshard.formats.codecs import is_seekable
from reshard.formats.codecs.source import REMEDY
from reshard.geometry.grid import Index
from reshard.restoring.read_chunk import ChunkResult
from reshard.restoring.read_groups import Unit
from reshard.restoring.tensor_read import TensorRead


class Restored(Struct, frozen=True):
    """The value of one tensor, and what it took.

    Attributes:
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes without which its elements cannot be had.
        is_verified: whether its bytes have the digest that the checkpoint recorded.
    """

    value: Any
    read_bytes: int
    needed_bytes: int
    cast: CastStats
    is_verified: bool


class TensorState(Struct):
    """A tensor while it is restored.

    Attributes:
        digest: what its bytes must have, where that is known and all of them pass here once.
        placed: what became of each hold's buffer.
        seen: chunks that were read before, some again where the budget took a unit apart.
    """

    read: TensorRead
    units: list[Unit]
    digest: str | None
    placed: list[Any]
    seen: set[Index] = field(default_factory=set)
    crc: int = 0
    cast: CastStats = field(default_factory=CastStats)
    read_bytes: int = 0
    needed_bytes: int = 0

    @classmethod
    def of(cls, read: TensorRead, max_memory: int, verify: bool) -> TensorState:
        units, is_split = read.units(max_memory)
        digest = read.stored.digest if verify and read.covers and not is_split else None
        return cls(read, units, digest, [None] * len(read.form.holds))

    def add(self, index: Index, result: ChunkResult) -> None:
        """Counts a chunk that was read; one that was read before was needed only once."""
        self.crc ^= result.crc
        self.cast = self.cast + result.cast
        self.read_bytes += result.read_bytes
        if index not in self.seen or is_seekable(self.read.stored.encoding):
            self.needed_bytes += result.needed_bytes
        self.seen.add(index)

    def restored(self) -> Restored:
        """The value; CorruptError where its digest is not the recorded one."""
        self._check_digest()
        value = self.read.form.assemble(self.placed)
        return Restored(
            value, self.read_bytes, self.needed_bytes, self.cast, self.digest is not None
        )

    def _check_digest(self) -> None:
        if self.digest is None:
            return
        spec = self.read.stored.spec
        found = f"{finish(CRC64NVME, self.crc, spec.nbytes):016x}"
        if found != self.digest:
            raise CorruptError(
                f"tensor {spec.name!r}: its bytes have the digest {found}, but {self.digest} was recorded "
                f"when it was written; {REMEDY}"
            )
