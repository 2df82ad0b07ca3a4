"""TensorStream: any box of any tensor as bytes, in bounded memory, reading only the chunks that it needs.

The box is given as a Box or as text such as ``0:128,:``. A digest of the places of its bytes changes when the bytes may have
changed.

SHA-256 of each tensor's row-major bytes, for checkers without tree hashes.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from reshard.checksums.sums import digest_of_bytes
from reshard.engine.buffers import aligned_empty
from reshard.engine.decode.box_plan import BoxPlan, StoredBox, plan_box
from reshard.engine.decode.box_stream import BandMemory, BoxStream
from reshard.engine.decode.chunk_reader import check_recorded
from reshard.engine.limits import Limits
from reshard.errors import LayoutError, SourceChangedError
from reshard.formats.base import Reader
from reshard.formats.contents import Extent, StoredTensor
from reshard.formats.names import SHA256_NAME
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.geometry.grid import Box
from reshard.geometry.row_major import run_boxes
from reshard.layout.changes import SATURATE
from reshard.storage.location import Location, file_state, locate


def write_sha256(chosen: CheckpointPath, place: Location, limits: Limits) -> Location:
    """Reads each tensor in order, and writes ``sha256.json`` into a folder: 64 hex digits by name."""
    reader = open_reader(chosen)
    found: dict[str, str] = {}
    for name, stored in reader.tensors.items():
        whole = Box.full(stored.spec.shape)
        stream = TensorStream(reader, stored, whole, stored.spec.dtype, limits.max_memory)
        digest = hashlib.sha256()
        for piece in stream:
            digest.update(piece)
        found[name] = digest.hexdigest()
    file = place / SHA256_NAME
    file.replace(msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=1) + b"\n")
    return file


class BoxBytes:
    """The elements of a box of a stored tensor, row-major and little-endian, without any check but those of its chunks.

    Attributes:
        nbytes: of the box.
        memory_bytes: memory that one read takes for buffers and decoders.
    """

    def __init__(self, reader: Reader, side: StoredBox, max_memory: int) -> None:
        self._reader = reader
        self._side = side
        self._max_memory = max_memory
        self._plan = plan_box(side, max_memory)
        self.nbytes = side.nbytes
        self.memory_bytes = self._plan.memory_bytes

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes ``start:stop``, in order; a piece is valid until the next one is asked for."""
        itemsize, box = self._side.itemsize, self._side.box
        first, end = start // itemsize, -(-stop // itemsize)
        is_part = (first, end) != (0, box.size)
        plan = plan_box(self._side, self._max_memory, is_part=True) if is_part else self._plan
        place = first * itemsize
        for piece in self._bands(plan, first, end):
            cut = piece[max(0, start - place) : stop - place]
            place += len(piece)
            if len(cut):
                yield cut

    def _bands(self, plan: BoxPlan, first: int, end: int) -> Iterator[memoryview]:
        import numpy as np

        side, edges = self._side, self._side.stored.spec.storage.cuts
        scratch = aligned_empty(plan.scratch_bytes)
        memory = BandMemory(aligned_empty(plan.band_bytes[0]), scratch)
        own = np.empty(plan.band_bytes[0], np.uint8)  # often warm, which newly mapped memory is not
        with BoxStream(side, self._reader, memory, keeps_open=plan.keeps_open[0]) as stream:
            for part in run_boxes(side.box.shape, first, end):
                for band in plan.cut.bands(part.shift(side.box.start), edges):
                    # In place, since a copy costs as much as reading from the page cache.
                    taken = own[: band.size * side.itemsize]
                    stream.take(band, taken)
                    yield taken.data


class TensorStream:
    """The elements of a box of a stored tensor, row-major and little-endian; they can be read more than once.

    Made by ``OpenedCheckpoint.stream``. Elements below 8 bits take a whole byte each, as stored.

    Attributes:
        name: of the tensor.
        full_shape: of the whole tensor.
        box: the box that is streamed.
        dtype: of the streamed elements.
        digest: CRC-64/NVME of the bytes, 16 hex digits, if the checkpoint recorded one and the stream is a whole tensor
            in its stored dtype; else None.
        missing_chunks: the number of the box's chunks that are not stored; the fill value is taken in their place.
        state: digest of the request and of the places of its bytes; the same state means the same bytes.
    """

    def __init__(
        self,
        reader: Reader,
        stored: StoredTensor,
        box: Box,
        dtype: str,
        max_memory: int,
        *,
        saturate: bool = False,
    ) -> None:
        self.name = stored.spec.name
        self.full_shape = stored.spec.shape
        self.box = box
        self.dtype = dtype
        self._reader = reader
        self._side = StoredBox(stored, box, dtype, saturate)
        self._bytes = BoxBytes(reader, self._side, max_memory)
        is_whole = box == Box.full(self.full_shape) and not self._side.is_cast
        self.digest = stored.digest if is_whole else None
        self._cast = dtype + (SATURATE if saturate else "")
        found = stored_state(reader, stored, box, self._cast)
        self.state, self.missing_chunks = found.digest, found.missing_chunks

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box."""
        return self.box.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the box."""
        return self._side.nbytes

    @property
    def memory_bytes(self) -> int:
        """Memory that one read takes for buffers and decoders."""
        return self._bytes.memory_bytes

    def __iter__(self) -> Iterator[bytes]:
        return self.read()

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes ``start:stop`` in order, in pieces of any length; only the chunks of this range are read.

        A chunk is decoded up to its last byte in the range. A checksum of all of a chunk is compared only if all of it is read.

        The last piece comes after all checks: CorruptError if a chunk's bytes are wrong or
        the digest of the whole differs from the recorded one, SourceChangedError if the checkpoint was
        changed meanwhile, StorageError if it cannot be read.
        """
        stop = self.nbytes if stop is None else min(stop, self.nbytes)
        start = min(max(0, start), stop)
        return self._checked(start, stop)

    def _checked(self, start: int, stop: int) -> Iterator[bytes]:
        digest = self.digest if (start, stop) == (0, self.nbytes) else None
        crc, waiting = 0, b""
        for piece in map(bytes, self._bytes.pieces(start, stop)):
            if waiting:
                yield waiting
            if digest is not None:
                crc = digest_of_bytes(piece, crc)
            waiting = piece
        self._check_end(digest, crc)
        if waiting:
            yield waiting

    def _check_end(self, digest: str | None, crc: int) -> None:
        stored = self._side.stored
        now = stored_state(self._reader, stored, self.box, self._cast)
        if now.digest != self.state:
            raise SourceChangedError(
                f"the files of {self.name!r} were changed while it was read; ask for it again, and let nothing write "
                "into a checkpoint while it is read"
            )
        if digest is not None:
            check_recorded(self.name, f"{crc:016x}", digest)


_VERSION = "reshard stream 1"
_NOT_STORED = " not stored"


class StoredState(Struct, frozen=True):
    """The state of a box's bytes: a digest of their places, and the chunks that are not stored.

    Attributes:
        digest: of the request, and of the files and offsets of its bytes, 32 hex digits.
        missing_chunks: the number of its chunks that are not stored.
    """

    digest: str
    missing_chunks: int


def stored_state(reader: Reader, stored: StoredTensor, box: Box, dtype: str) -> StoredState:
    """The state of a box now.

    A local file is identified by its name, size and modification time (ns), one in a bucket by its version. Raises StorageError if the
    status of a file cannot be read, CorruptError if a required chunk is missing.
    """
    found, missing = hashlib.sha256(), 0
    for line in _lines(reader, stored, box, dtype):
        found.update(line.encode(errors="surrogateescape") + b"\n")
        missing += line.endswith(_NOT_STORED)
    return StoredState(found.hexdigest()[:32], missing)


def _lines(reader: Reader, stored: StoredTensor, box: Box, dtype: str) -> Iterator[str]:
    spec, encoding = stored.spec, stored.encoding
    yield repr((_VERSION, spec.name, spec.shape, spec.dtype, box.start, box.stop, dtype))
    yield repr((spec.storage.cuts, spec.chunk_shape, stored.fill, stored.digest))
    coded = (encoding.compressor, encoding.level, encoding.checksum, encoding.spec)
    yield repr((*coded, encoding.axis_order) if encoding.axis_order else coded)
    files: dict[str, str] = {}
    root = str(locate(reader.uri))
    for index in itertools.product(*spec.storage.overlapping(box)):
        extent = reader.locate(spec.name, index)
        if extent is None:
            yield f"{index}{_NOT_STORED}"
            continue
        inline = hashlib.sha256(extent.inline).hexdigest() if extent.inline is not None else ""
        for path, version, place in _places(extent):
            if path not in files:
                files[path] = _of_file(path, version, root)
            yield f"{place} {inline} {files[path]}"


def files_of_box(reader: Reader, stored: StoredTensor, box: Box) -> Iterator[tuple[str, str]]:
    """The files that contain chunks of a box, with their versions, some of them more than once."""
    for index in itertools.product(*stored.spec.storage.overlapping(box)):
        extent = reader.locate(stored.spec.name, index)
        for path, version, _ in () if extent is None else _places(extent):
            yield path, version


def _places(extent: Extent) -> Iterator[tuple[str, str, str]]:
    """The files that contain the chunk, their versions, and the place in each."""
    if extent.computed is not None:
        yield from extent.computed.formula.places()
        for operand in extent.computed.operands:
            for chunk in operand.chunks:
                yield from () if chunk.extent is None else _places(chunk.extent)
        return
    if extent.pieces is None:
        yield extent.path, extent.version, f"{extent.offset} {extent.length}"
        return
    for piece in extent.pieces.pieces:
        yield piece.path, piece.version, f"{piece.offset} {piece.box} {piece.order}"


def _of_file(path: str, version: str, root: str) -> str:
    return f"{path.removeprefix(root)}\0{version or file_state(path)}"


_ENTRY = re.compile(r"\s*(\d{1,19})?\s*:\s*(\d{1,19})?\s*", re.ASCII)
_EXAMPLE = "'0:128,:'"
_SHOWN = 80


def slice_box(name: str, shape: Sequence[int], given: Box | str | None) -> Box:
    """The box of a tensor of ``shape`` that a slice means; None and ``""`` mean the whole tensor.

    Text has ``start:stop`` for each dimension, and either number may be left out; missing dimensions are
    whole. Raises LayoutError, naming the tensor, for anything else and for a box outside of the tensor.

    >>> slice_box("w", (256, 64), "0:128")
    Box(start=(0, 0), stop=(128, 64))
    """
    if given is None or (isinstance(given, str) and not given.strip()):
        return Box.full(shape)
    box = _parsed(name, shape, given) if isinstance(given, str) else given
    if not isinstance(box, Box):
        raise LayoutError(
            f"the slice of {name!r} is {given!r}; expected text such as {_EXAMPLE}, or a Box"
        )
    if box.rank != len(shape) or any(
        not 0 <= a <= b <= n for a, b, n in zip(box.start, box.stop, shape, strict=True)
    ):
        raise LayoutError(
            f"the slice {box} reaches outside of {name!r}, which has the shape {list(shape)}; choose a slice inside it"
        )
    return box


def _parsed(name: str, shape: Sequence[int], text: str) -> Box:
    entries = text.split(",")
    if len(entries) > len(shape):
        raise LayoutError(
            f"the slice {text[:_SHOWN]!r} has {len(entries)} dimensions, but {name!r} has the shape {list(shape)}; "
            f"give at most one start:stop for each, as in {_EXAMPLE}"
        )
    pairs = [_pair(name, entry, size) for entry, size in zip(entries, shape, strict=False)]
    pairs += [(0, size) for size in shape[len(pairs) :]]
    return Box(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def _pair(name: str, entry: str, size: int) -> tuple[int, int]:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise LayoutError(
            f"the slice of {name!r} has {entry[:_SHOWN]!r} where start:stop was expected, as in {_EXAMPLE}; one row is "
            "5:6, and there are no steps and no negative numbers"
        )
    return int(found[1] or 0), size if found[2] is None else int(found[2])
