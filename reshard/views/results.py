"""Results: the bytes of the tensors that a conversion would write, made from the source as they are read.

A tensor that is a box of a source tensor, in its order, is read there, and cast. Any other is computed of its pieces, like the tensors of
``arithmetic/``.

Every piece of bytes is handed over only if the files that it came from are still as they were when the view was planned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from reshard.arithmetic.mapped import tensor_of_pieces
from reshard.checksums.sums import digest_of_bytes
from reshard.conversion.conversion_key import source_state
from reshard.conversion.target_content import TargetContent
from reshard.engine.decode.box_plan import StoredBox
from reshard.engine.decode.chunk_reader import check_recorded
from reshard.errors import MissingError, ReshardError, SourceChangedError
from reshard.formats.base import Reader
from reshard.formats.codecs import is_seekable
from reshard.formats.computed.tensors import ComputedChunks
from reshard.formats.registry import CheckpointPath
from reshard.geometry.grid import Box
from reshard.geometry.row_major import run_boxes
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.storage.location import file_state, locate
from reshard.streaming.tensor_stream import BoxBytes, files_of_box

Octets = bytes | memoryview

MOST_OPEN = 1024
"""Tensors whose plan of reading is kept; it is made again for others."""


class Pins:
    """The states of a source's files, as they were when the source had the state ``state``.

    Files in buckets need none: they are read in the versions that were listed.
    """

    def __init__(self, chosen: CheckpointPath, state: str) -> None:
        self._chosen = chosen
        self._state = state
        root = self._root = locate(chosen.path)  # that of ``chosen`` remembers what it has listed
        self._known: dict[str, str] = {}
        if not root.traits.has_versions:
            files = root.files() if root.is_folder() else iter(())
            self._known = {(path := str(root / file)): file_state(path) for file in files}
            self.check_all()

    def check_all(self) -> None:
        """Raises SourceChangedError if any file of the source is not as it was, MissingError if the source is gone."""
        if not self._root.exists():
            raise MissingError(
                f"{self._chosen.path} is not there any more; what was planned of it cannot be read"
            )
        if source_state(self._root, self._chosen.computed) != self._state:
            raise self._changed()

    def check(self, files: Iterator[tuple[str, str]]) -> None:
        """Raises SourceChangedError if one of these files is not as it was."""
        for path in {path for path, version in files if not version and path}:
            if path not in self._known:  # of another checkpoint, or behind a link
                self._known[path] = file_state(path)
                self.check_all()
            if file_state(path) != self._known[path]:
                raise self._changed()

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(
            f"{self._chosen.path} was changed since the view of it was planned; ask for its newest revision, and let nothing write "
            "into a checkpoint that is read"
        )


class _Result(Struct, frozen=True):
    """The way to read one tensor.

    Attributes:
        start: of the tensor in the coordinates of ``side.stored``.
    """

    reader: Reader
    side: StoredBox
    start: tuple[int, ...]


class Results:
    """The tensors of a target that is not written.

    Attributes:
        origins: the source tensor of each that is a whole one, bit for bit, by its name.
        digests: CRC-64/NVME of those tensors whose bytes the source recorded, by name.
        seen: the same of other tensors that were read as a whole meanwhile.
    """

    def __init__(self, reader: Reader, content: TargetContent, pins: Pins, max_memory: int) -> None:
        self._reader = reader
        self._specs = {n: t.spec for n, t in content.checkpoint.tensors.items()}
        pieces: dict[str, list[Piece]] = defaultdict(list)
        for wanted in content.wanted_pieces:
            pieces[wanted.piece.target].append(wanted.piece)
        self._pieces: Mapping[str, Sequence[Piece]] = pieces
        self._pins = pins
        self._max_memory = max_memory
        self._result = lru_cache(MOST_OPEN)(self._found)
        self.origins = {n: p[0].source for n, p in pieces.items() if self._is_whole(n, p)}
        digests = ((n, reader.tensors[o].digest) for n, o in self.origins.items())
        self.digests = {name: digest for name, digest in digests if digest is not None}
        self.seen = {name: f"{0:016x}" for name, spec in self._specs.items() if not spec.nbytes}

    def check_memory(self) -> None:
        """Raises MemoryBudgetError for a tensor that cannot be read within the memory of a read."""
        for name, spec in self._specs.items():
            if spec.nbytes > self._max_memory // 4:
                self._bytes(name, Box.full(spec.shape))

    def digest_of(self, name: str, box: Box) -> str | None:
        """CRC-64/NVME of a box of a tensor, if it is all of one whose digest the source recorded."""
        return self.digests.get(name) if box == Box.full(self._specs[name].shape) else None

    def is_seekable(self, name: str) -> bool:
        """True if a part of a tensor is read without what is before it."""
        return is_seekable(self._result(name).side.stored.encoding)

    def band(self, name: str, box: Box, place: int) -> tuple[int, int]:
        """The bytes of a box of a tensor from the beginning of the chunks of the byte at ``place`` to their end.

        They are a row of chunks, along the first dimension in which a chunk has more than one element.
        """
        found, itemsize = self._result(name), self._specs[name].itemsize
        cuts, start = found.side.stored.spec.storage.cuts, box.shift(found.start).start
        first, rest, inner = 0, place // itemsize, box.size
        for size, begin, own in zip(box.shape, start, cuts, strict=True):
            inner //= size
            index, rest = divmod(rest, inner)
            after = bisect_right(own, begin + index)
            low, high = max(0, own[after - 1] - begin), min(size, own[after] - begin)
            if high - low > 1:
                return (first + low * inner) * itemsize, (first + high * inner) * itemsize
            first += index * inner
        return first * itemsize, (first + 1) * itemsize

    def read(self, name: str, box: Box, start: int, stop: int) -> Iterator[Octets]:
        """Bytes ``start:stop`` of a box of a tensor, row-major.

        A digest that the source recorded, or that an earlier read had, is compared where all of the tensor is read, before its last bytes are
        handed over. Raises CorruptError for wrong bytes, SourceChangedError if the source was changed since the view was planned.
        """
        try:
            yield from self._checked(name, box, start, stop)
        except ReshardError:
            self._pins.check_all()  # a source that is gone, or changed, explains what was found
            raise

    def _checked(self, name: str, box: Box, start: int, stop: int) -> Iterator[Octets]:
        spec, found = self._specs[name], self._result(name)
        stream, shifted = self._bytes(name, box)
        is_all = (start, stop) == (0, stream.nbytes) and box == Box.full(spec.shape)
        crc, place = 0, start
        for piece in stream.pieces(start, stop):
            if is_all:
                crc = digest_of_bytes(piece, crc)
            elements = place // spec.itemsize, -(-(place + len(piece)) // spec.itemsize)
            for part in run_boxes(box.shape, *elements):
                there = part.shift(shifted.start)
                self._pins.check(files_of_box(found.reader, found.side.stored, there))
            place += len(piece)
            if place == stop and is_all:
                known = self.digests.get(name) or self.seen.setdefault(name, f"{crc:016x}")
                check_recorded(name, f"{crc:016x}", known)
            yield piece

    def _bytes(self, name: str, box: Box) -> tuple[BoxBytes, Box]:
        found = self._result(name)
        shifted = box.shift(found.start)
        side = replace(found.side, box=shifted)
        return BoxBytes(found.reader, side, self._max_memory), shifted

    def _found(self, name: str) -> _Result:
        spec, pieces = self._specs[name], self._pieces.get(name, ())
        if len(pieces) == 1 and _is_box(pieces[0], spec):
            piece = pieces[0]
            stored = self._reader.tensors[piece.source]
            side = StoredBox(stored, piece.source_box, spec.dtype, piece.saturate)
            return _Result(self._reader, side, piece.source_box.start)
        made = tensor_of_pieces(self._reader, spec, pieces)
        reader = replace(self._reader, chunks=ComputedChunks(self._reader, {name: made}))
        return _Result(reader, StoredBox.whole(made.stored), (0,) * len(spec.shape))

    def _is_whole(self, name: str, pieces: Sequence[Piece]) -> bool:
        spec, (piece, *others) = self._specs[name], pieces
        return (
            not others
            and _is_box(piece, spec)
            and not piece.is_computed
            and piece.source_box.shape == self._reader.tensors[piece.source].spec.shape
        )


def _is_box(piece: Piece, spec: TensorSpec) -> bool:
    """True if a tensor is a box of a source tensor, in its order; it may be cast."""
    return (
        piece.fill is None
        and piece.arithmetic is None
        and not piece.is_viewed
        and piece.axis_order == tuple(range(len(spec.shape)))
        and piece.fills(spec)
    )
