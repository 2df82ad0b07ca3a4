"""The checksums of a target's chunks as they are stored, read from its journal."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from reshard.checksums.crc import CRC32C_OF_CHECKED
from reshard.conversion.open_target import OpenTarget
from reshard.conversion.resume.journal import read_results
from reshard.conversion.resume.journaled_chunks import journaled_chunks
from reshard.errors import StorageError
from reshard.formats.file_map import ChunkChecksum


class ChunkChecksums(Struct, frozen=True):
    """Every chunk of a target whose units are all filled, in any order; each iteration reads the journal anew.

    Raises StorageError where the journal is not whole any more.
    """

    target: OpenTarget

    def __iter__(self) -> Iterator[ChunkChecksum]:
        plan, output = self.target.job.plan, self.target.output
        count = 0
        results = read_results(self.target.transaction.records(), plan)
        for chunk in journaled_chunks(results, plan, output):
            if chunk.stored_bytes is None:
                continue
            crc32c = CRC32C_OF_CHECKED if chunk.has_trailer else chunk.crc32c
            if crc32c is not None:
                name = plan.tensors[chunk.tensor].name
                yield ChunkChecksum(name, chunk.stored.index, chunk.stored_bytes, crc32c)
                count += 1
        expected = sum(tensor.target.spec.storage.count for tensor in plan.tensors)
        if count != expected:
            raise StorageError(
                f"the journal in {self.target.transaction.place!r} names {count} of {expected} finished chunks, so that their "
                "checksums are not known; nothing was published; leave that folder alone, and run again"
            )
