"""Books: the sums of what was read, stored, covered and proved for each tensor of a target, from the results of units.

A run that resumes another begins with the results that the other recorded. ``TargetRun`` has what the engine needs of a target.

A target tensor with several pieces is proved as a whole (``TensorBook``), and a source of many targets is read once for all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from reshard.checksums.sums import NOTHING, PRIME, Sums, coverage, coverage_of, digest_text
from reshard.engine.error_context import about_tensor
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.engine.task import CastStats, Result, StoredChunk
from reshard.engine.write.chunk_files import close_chunk, raw_bytes
from reshard.errors import VerificationError
from reshard.formats.contents import Encoding, Extent
from reshard.formats.file_map import Place
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
    _check_same(tensor, book.sums)
    digest = None if source is None else source.digest
    return TensorResult(digest, digest_text(book.sums.target, spec.nbytes), *amounts)


def _check_same(tensor: TensorPlan, sums: Sums) -> None:
    """Raises VerificationError unless what was written is what was read, at its place."""
    if tensor.changes_bytes:
        is_same = sums.placed == sums.expected
        written, read = f"weighted sum {sums.placed:016x}", f"gives {sums.expected:016x}"
    else:
        nbytes, is_same = tensor.target.spec.nbytes, sums.target == sums.source
        written = f"digest {digest_text(sums.target, nbytes)}"
        read = f"has {digest_text(sums.source, nbytes)}"
    if not is_same:
        raise VerificationError(
            f"{tensor.name!r}: what was written has {written}, but what was read {read}; "
            "the output was discarded; check this machine's memory, then run again"
        )


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


class Books:
    """Adds up the results of units, of one run or of several, and closes the chunks that are complete."""

    def __init__(
        self,
        plan: Plan,
        output: TargetOutput,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._plan = plan
        self._output = output
        self._progress = progress
        self._tensors = [TensorBook() for _ in plan.tensors]
        self._sources = source_books(plan)
        # Sums over all tensors, taken once: a sum after each task would take time quadratic in the number of tensors.
        self._total_bytes = sum(tensor.moved_bytes for tensor in plan.tensors)
        self._total_tasks = plan.tasks
        self._moved_bytes = 0
        self._resumed_bytes = 0
        self._tasks_done = 0

    def expect(self, total_bytes: int, total_tasks: int) -> None:
        """Notes the amount of work, if that is only a part of the plan."""
        self._total_bytes, self._total_tasks = total_bytes, total_tasks

    @property
    def tasks_done(self) -> int:
        """Tasks that are done, those of earlier runs included."""
        return self._tasks_done

    @property
    def tensors(self) -> Sequence[TensorPlan]:
        """The tensors of the plan."""
        return self._plan.tensors

    @property
    def moved_bytes(self) -> int:
        """Bytes of the source that are in their places, earlier runs included."""
        return self._moved_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the source that the plan moves."""
        return self._total_bytes

    @property
    def total_tasks(self) -> int:
        """Tasks of the plan, or of the part of it that is to do."""
        return self._total_tasks

    @property
    def resumed_bytes(self) -> int:
        """The part of ``moved_bytes`` that an earlier run moved."""
        return self._resumed_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes of the target's chunks that are in their files, all copies and earlier runs included."""
        return sum(
            tensor.target.copies
            * (book.written_bytes + sum(c.nbytes for c in book.open_chunks.values()))
            for tensor, book in zip(self.tensors, self._tensors, strict=True)
        )

    def take(self, result: Result, *, is_resumed: bool = True) -> None:
        """Counts a result of an earlier run, or of a part of this conversion; no file is touched."""
        self._count(result, self._closed_bytes)
        if is_resumed:
            self._resumed_bytes += result.moved_bytes

    def add(self, result: Result) -> list[Extent]:
        """Counts a result of this run, and closes the chunks that are complete now; returns their places."""
        complete = self._count(result, self._close)
        self.report_progress(self._plan.tensors[result.tensor].name)
        return [
            Extent(f"{self._output.root}/{place.file}", place.start, chunk.stored_bytes or 0)
            for chunk in complete
            for place in self._places(result.tensor, chunk.index)
        ]

    def report_progress(self, tensor: str) -> None:
        """Reports the progress of the run."""
        if self._progress is not None:
            self._progress(
                Progress(
                    self._moved_bytes,
                    self._total_bytes,
                    self._tasks_done,
                    self._total_tasks,
                    tensor,
                    resumed_bytes=self._resumed_bytes,
                )
            )

    def results(self) -> list[TensorResult]:
        """The result of each tensor; raises VerificationError if a chunk is not complete or digests differ."""
        return [self.result(number) for number in range(len(self._tensors))]

    def result(self, number: int) -> TensorResult:
        """The result of one tensor; raises as ``results``."""
        tensor = self._plan.tensors[number]
        return proved(tensor, self._tensors[number], self._source_of(tensor))

    def casts(self) -> list[CastStats]:
        """The loss of casts and arithmetic so far, for each tensor."""
        return [book.cast for book in self._tensors]

    def source_digests(self) -> dict[tuple[int, str], str]:
        """The digest of each source tensor that was read whole and once, by checkpoint and name."""
        found = ((key, book.digest) for key, book in self._sources.items())
        return {key: digest for key, digest in found if digest is not None}

    def source_crcs(self) -> dict[tuple[int, str], int]:
        """The formats' own checksums of the source tensors, by the same keys (``PieceCrcs.total``)."""
        found = ((key, book.stored) for key, book in self._sources.items())
        return {key: total for key, total in found if total is not None}

    def _source_of(self, tensor: TensorPlan) -> SourceBook | None:
        """The book of a tensor's only source."""
        keys = {piece.key for piece in tensor.pieces if piece.fill is None}
        return self._sources.get(keys.pop()) if len(keys) == 1 else None

    def _count(self, result: Result, size: Callable[[int, StoredChunk], int]) -> list[StoredChunk]:
        """Counts a result; returns the chunks that are complete now."""
        number, tensor = result.tensor, self._plan.tensors[result.tensor]
        book, fill = self._tensors[number], tensor.fill_at(result.unit)[0]
        for piece, sums in zip(fill.pieces, result.sums, strict=True):
            book.sums = book.sums.merge(sums)
            source = self._sources.get(piece.key)
            if source is not None:
                source.sums = source.sums.merge(sums)
        book.moved_bytes += result.moved_bytes
        book.read_bytes += result.read_bytes
        if result.cast is not None:
            book.cast = book.cast + result.cast
        spec = tensor.target.spec
        found = [book.take(spec, chunk, lambda c: size(number, c)) for chunk in result.chunks]
        self._moved_bytes += result.moved_bytes
        self._tasks_done += 1
        return [chunk for chunk in found if chunk is not None]

    def _close(self, tensor: int, chunk: StoredChunk) -> int:
        """Ends a raw chunk that several tasks have written; returns its size."""
        spec = self._plan.tensors[tensor].target.spec
        nbytes, has_trailer = padded_bytes(spec, chunk.index), self._encoding(spec).checksum
        with about_tensor(spec.name):
            for place in self._places(tensor, chunk.index):
                if place.offset is None:
                    path = f"{self._output.root}/{place.file}"
                    close_chunk(path, chunk.crc32c if has_trailer else None, nbytes)
        return raw_bytes(nbytes, has_trailer=has_trailer)

    def _closed_bytes(self, tensor: int, chunk: StoredChunk) -> int:
        spec = self._plan.tensors[tensor].target.spec
        return closed_bytes(spec, self._encoding(spec), chunk.index)

    def _encoding(self, spec: TensorSpec) -> Encoding:
        return self._output.encodings[spec.name]

    def _places(self, tensor: int, index: Index) -> tuple[Place, ...]:
        return self._output.places(self._plan.tensors[tensor].name, index)


class DoneUnits:
    """The units that are done already: a byte for each unit of the plan."""

    def __init__(self, plan: Plan) -> None:
        counts = [tensor.unit_count for tensor in plan.tensors]
        self._first = list(itertools.accumulate(counts, initial=0))
        self._done = bytearray(self._first[-1])

    def add(self, tensor: int, unit: int) -> None:
        self._done[self._first[tensor] + unit] = 1

    def has(self, tensor: int, unit: int) -> bool:
        return bool(self._done[self._first[tensor] + unit])


class TargetRun(Struct):
    """A target as the engine writes it: the output of its tasks, and the books that add up their results.

    Attributes:
        done: units that are filled, by an earlier run or by this one; None if it is not needed.
        record: called with the results of each batch, after the kernel has all of their bytes and
            their complete chunks are closed.
    """

    output: TargetOutput
    books: Books
    done: DoneUnits | None = None
    record: Callable[[Sequence[Result]], None] | None = None

    def is_first(self, result: Result) -> bool:
        """Notes a filled unit; False if it was filled before, since a task may be carried out twice."""
        if self.done is None:
            return True
        if self.done.has(result.tensor, result.unit):
            return False
        self.done.add(result.tensor, result.unit)
        return True
