"""TensorRead: one tensor to restore, the memory it takes, and whether that fits the budget."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from reshard.engine.decode.chunk_decoder import StoredChunks
from reshard.errors import MemoryBudgetError
from reshard.formats.base import StoredTensor
from reshard.formats.codecs import decoder_bytes
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.sizes import format_bytes
from reshard.planning.cost import BAND_BYTES, CAST_SCRATCH_BYTES, TASK_OVERHEAD_BYTES
from reshard.restoring.outputs import Form
from reshard.restoring.read_groups import Unit, parts, units

MIB = 1 << 20


class TensorRead(Struct, frozen=True):
    """A tensor of a checkpoint and what it becomes.

    Attributes:
        name: in the restored tree.
        dtype: in the restored tree.
        saturate: whether the cast makes values beyond the largest finite one that one.
    """

    name: str
    stored: StoredTensor
    dtype: str
    form: Form
    saturate: bool = False

    @property
    def is_cast(self) -> bool:
        return self.dtype != self.stored.spec.dtype

    @property
    def chunks(self) -> StoredChunks:
        stored = self.stored
        return StoredChunks(stored.spec.name, stored.spec.dtype, stored.encoding, stored.fill)

    @property
    def stream_bytes(self) -> int:
        """Memory to read one chunk: decoder, band buffer, and what a cast takes."""
        spec = self.stored.spec
        chunk_bytes = math.prod(spec.chunk_shape or spec.storage.largest) * spec.itemsize
        cast = CAST_SCRATCH_BYTES if self.is_cast else 0
        return (
            decoder_bytes(self.stored.encoding, chunk_bytes)
            + BAND_BYTES
            + TASK_OVERHEAD_BYTES
            + cast
        )

    @property
    def hold_bytes(self) -> list[int]:
        """Bytes of the buffer of each hold."""
        itemsize = storage_bytes(self.dtype)
        return [hold.size * itemsize for hold in self.form.holds]

    @property
    def staged_bytes(self) -> list[int]:
        """What each hold's buffer takes beside the result."""
        return self.hold_bytes if self.form.is_staged else [0] * len(self.form.holds)

    @property
    def smallest_bytes(self) -> int:
        """The smallest budget with which it can be restored: one chunk and one staged buffer."""
        return self.stream_bytes + max(self.staged_bytes, default=0)

    @property
    def covers(self) -> bool:
        """Whether this process needs every element."""
        return sum(h.size for h in self.form.holds) == math.prod(self.stored.spec.shape)

    def units(self, max_memory: int) -> tuple[list[Unit], bool]:
        """Holds that are filled together, and whether the budget took apart any that share chunks."""
        whole = units(self.form.holds, self.stored.spec.storage)
        staged = self.staged_bytes
        room = max_memory - self.stream_bytes
        split = [part for unit in whole for part in parts(unit, staged, room)]
        return split, len(split) > len(whole)


def check_memory(reads: Iterable[TensorRead], max_memory: int) -> None:
    """Raises MemoryBudgetError, before anything is read, where the budget is too small for a tensor."""
    largest = max(reads, key=lambda read: read.smallest_bytes, default=None)
    if largest is None or largest.smallest_bytes <= max_memory:
        return
    staged = max(largest.staged_bytes)
    mib = -(-largest.smallest_bytes // MIB)
    raise MemoryBudgetError(
        f"to restore {largest.name!r} takes {format_bytes(largest.stream_bytes)} to decode a chunk "
        f"({largest.stored.encoding.compressor}) and {format_bytes(staged)} for the largest shard on its way "
        f"to a device, but max_memory is {format_bytes(max_memory)}; allow {mib}MiB"
        + ("" if not staged else ", or split it over more devices"),
        smallest_bytes=mib * MIB,
    )
