"""The book of one tensor: the sums of what was read or stored, and the proof that it is complete and right.

A target tensor with several pieces is proved as a whole, and a source of many targets is read once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct, field

from reshard.checksums.sums import NOTHING, PRIME, Sums, coverage, coverage_of, digest_text
from reshard.engine.task import CastStats, StoredChunk
from reshard.engine.write.chunk_files import raw_bytes
from reshard.errors import VerificationError
from reshard.formats.encoding import Encoding
from reshard.geometry.grid import Box, Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.plans import Plan, TensorPlan


class SourceBook(Struct):
    """The sums of what was read of one source tensor.

    Attributes:
        planned: coverage of all elements that pieces take of it.
    """

    spec: TensorSpec
    planned: int = 0
    sums: Sums = NOTHING

    @property
    def digest(self) -> str | None:
        """Its digest, 16 hex digits; None unless each of its elements is taken once, and was read."""
        whole, sums = coverage_of(Box.full(self.spec.shape)), self.sums
        is_whole = sums.is_seen and whole == self.planned == sums.read
        return digest_text(sums.source, self.spec.nbytes) if is_whole else None

    @property
    def stored(self) -> int | None:
        """The format's own checksum of the elements that were read; None if ``digest`` is None."""
        return None if self.digest is None else self.sums.stored


class TensorBook(Struct):
    """The sums of what was done for one target tensor.

    Attributes:
        written_bytes: of complete chunks; one of several copies counts.
        open_chunks: for each incomplete chunk, the part that is stored.
    """

    sums: Sums = NOTHING
    moved_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    closed_chunks: int = 0
    cast: CastStats = field(default_factory=CastStats)
    open_chunks: dict[Index, StoredChunk] = field(default_factory=dict)

    def take(
        self, spec: TensorSpec, chunk: StoredChunk, size: Callable[[StoredChunk], int]
    ) -> StoredChunk | None:
        """Counts a stored part of a chunk; returns the chunk if it is complete now, with the size that ``size`` gives."""
        whole = merged_chunk(spec, self.open_chunks, chunk, size)
        if whole is not None:
            self.closed_chunks += 1
            self.written_bytes += whole.stored_bytes or 0
        return whole


class TensorResult(Struct, frozen=True):
    """The result for a target tensor: digests as 16 hex digits, None if chunks were copied encoded.

    The source's digest is also None for several sources, or for a part of one.
    """

    source_digest: str | None
    target_digest: str | None
    moved_bytes: int
    read_bytes: int
    written_bytes: int
    cast: CastStats


def merged_chunk(
    spec: TensorSpec,
    open_chunks: dict[Index, StoredChunk],
    chunk: StoredChunk,
    size: Callable[[StoredChunk], int],
) -> StoredChunk | None:
    """A chunk merged with the parts that other tasks stored, if it is complete now; else None, and ``open_chunks`` keeps it.

    ``size`` gives the size of a raw chunk that became complete.
    """
    if chunk.stored_bytes is not None:
        return chunk
    before = open_chunks.pop(chunk.index, None)
    crc, nbytes = chunk.crc32c, chunk.nbytes
    if before is not None:
        crc, nbytes = crc ^ before.crc32c, nbytes + before.nbytes
    merged = StoredChunk(chunk.index, crc, nbytes)
    if nbytes < spec.storage.box(chunk.index).size * spec.itemsize:
        open_chunks[chunk.index] = merged
        return None
    return StoredChunk(chunk.index, crc, nbytes, size(merged))


def padded_bytes(spec: TensorSpec, index: Index) -> int:
    """Bytes of a raw target chunk, with padding and without checksum."""
    return math.prod(spec.stored_shape(index)) * spec.itemsize


def closed_bytes(spec: TensorSpec, encoding: Encoding, index: Index) -> int:
    """The size of a raw target chunk as it is stored, with its checksum."""
    return raw_bytes(padded_bytes(spec, index), has_trailer=encoding.checksum)


def source_books(plan: Plan) -> dict[tuple[int, str], SourceBook]:
    """A book for each source tensor, by checkpoint and name."""
    books: dict[tuple[int, str], SourceBook] = {}
    for fill in plan.fills:
        for piece, side in zip(fill.pieces, fill.sources, strict=True):
            if piece.fill is None:
                book = books.setdefault(piece.key, SourceBook(side.spec))
                book.planned = (book.planned + _taken(piece)) % PRIME
    return books


def _taken(piece: Piece) -> int:
    """Coverage of the elements that a piece takes of its source."""
    return coverage(piece.source_boxes(Box.full(piece.shape)))


def proved(tensor: TensorPlan, book: TensorBook, source: SourceBook | None) -> TensorResult:
    """The result of a tensor; VerificationError if a chunk is not complete, an element was left out, or digests differ."""
    name, spec = tensor.name, tensor.target.spec
    chunks = spec.storage.count
    if book.closed_chunks != chunks or book.moved_bytes != tensor.moved_bytes:
        raise VerificationError(
            f"{name!r}: {book.closed_chunks} of {chunks} chunks were completed and {book.moved_bytes} of "
            f"{tensor.moved_bytes} bytes moved; this is a defect of the program, please report it with the plan"
        )
    _check_covered(tensor, book)
    written = book.written_bytes * tensor.target.copies
    amounts = (book.moved_bytes, book.read_bytes, written, book.cast)
    if not book.sums.is_seen:
        return TensorResult(None, None, *amounts)
    target = digest_text(book.sums.target, spec.nbytes)
    digest = None if source is None else source.digest
    if book.sums.target != book.sums.expected:
        expected = digest_text(book.sums.expected, spec.nbytes)
        raise VerificationError(
            f"{name!r}: what was written has digest {target}, but what was read "
            f"{'has' if expected == digest else 'gives'} {expected}; "
            "the output was discarded; check this machine's memory, then run again"
        )
    return TensorResult(digest, target, *amounts)


def _check_covered(tensor: TensorPlan, book: TensorBook) -> None:
    """Raises VerificationError unless coverage is right: a digest alone misses an absent piece of zeros, or one counted twice."""
    taken = sum(map(_taken, tensor.pieces)) % PRIME
    whole = coverage_of(Box.full(tensor.target.spec.shape))
    for done, is_covered in (
        ("read", book.sums.read == taken),
        ("written", book.sums.written == whole),
    ):
        if not is_covered:
            raise VerificationError(
                f"{tensor.name!r}: not every element was {done} exactly once; the output was discarded; this "
                "is a defect of the program, please report it with the plan"
            )
