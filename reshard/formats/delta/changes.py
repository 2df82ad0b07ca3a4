"""DeltaFormula: computes the bytes of a tensor from those of a base, and from the layers of deltas over them.

Each window of the base passes through every layer, the oldest first, and through the checksum that the layer records. Payloads are decoded in
step with the base, in bounded memory: a layer that overwrites has its positions and its new bytes in one frame, which is decoded by two streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

import numpy as np
from msgspec import Struct

from reshard.arguments import DeltaEncoding
from reshard.errors import VerificationError
from reshard.formats.codecs.compressed import (
    ZstdStream,
    refuse_window,
    window_bytes,
    zstd_decoder_bytes,
)
from reshard.formats.codecs.source import Source
from reshard.formats.codecs.stream import INPUT_BYTES
from reshard.formats.computed.formula import Calculation, Formula
from reshard.formats.contents import Extent
from reshard.formats.delta.index_values import Checksum, Hasher, hasher

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.geometry.grid import Box

    Bytes = npt.NDArray[np.uint8]

LEVEL = 1
"""Of the zstd frames; a larger window than this level has is refused."""

BLOCK_BYTES = 256 << 10
"""Small enough for a processor's cache: a block passes through all layers before the next is read."""

COUNT_BYTES = POSITION_BYTES = 4

_KEPT_POSITIONS = BLOCK_BYTES // POSITION_BYTES


LayerKind = Literal[DeltaEncoding, "same"]


class Layer(Struct, frozen=True):
    """The change of one delta to the bytes of a whole tensor; the layout is that of ``formats/delta/index.py``.

    Attributes:
        kind: the way in which the payload changes the bytes; ``"same"`` for a tensor that the delta does not touch, whose bytes are only checked.
        version: of the delta, for messages.
        checksum: the kind of ``digest``, by the name that the delta gives it.
        digest: of all bytes of the tensor with this layer, hex digits.
        path, offset, length, file_version: of the payload, one zstd frame; as in ``Extent``.
    """

    kind: LayerKind
    version: str
    checksum: str
    digest: str
    path: str = ""
    offset: int = 0
    length: int = 0
    file_version: str = ""


class DeltaFormula(Formula, frozen=True):
    """The bytes of a tensor, which is one chunk, with layers over them, the oldest first.

    Attributes:
        read_ahead_bytes: of a payload; as in ``Encoding``.
    """

    layers: tuple[Layer, ...]
    read_ahead_bytes: int = 0

    is_opaque = is_sequential = True
    scratch_bytes = 1

    @property
    def window_elements(self) -> int:
        return BLOCK_BYTES // 4

    def places(self) -> Iterator[tuple[str, str, str]]:
        for layer in self.layers:
            if layer.path:
                place = f"{layer.kind} {layer.offset} {layer.length} {layer.digest}"
                yield layer.path, layer.file_version, place

    @property
    def fixed_bytes(self) -> int:
        decoders = sum(CHANGES[each.kind].decoders for each in self.layers if each.kind != "same")
        return decoders * (zstd_decoder_bytes(LEVEL) + 2 * BLOCK_BYTES + self.read_ahead_bytes)

    def boxes(self, box: Box) -> tuple[Box]:
        return (box,)

    def opened(self, where: str, nbytes: int) -> Calculation:
        return _Applied(self, where, nbytes)


class _Applied(Calculation):
    """Applies the layers of a formula, window by window."""

    def __init__(self, formula: DeltaFormula, where: str, nbytes: int) -> None:
        super().__init__(formula)
        self._layers: list[_CheckedLayer] = []
        try:
            for layer in formula.layers:
                self._layers.append(_CheckedLayer(layer, where, nbytes, formula.read_ahead_bytes))
        except BaseException:
            self.close()
            raise

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        del box  # windows come in order
        out[...] = operands[0]
        octets = out.reshape(-1).view(np.uint8)
        for start in range(0, len(octets), BLOCK_BYTES):
            for layer in self._layers:
                layer.apply(octets[start : start + BLOCK_BYTES])

    def check_end(self) -> None:
        for layer in self._layers:
            layer.check()

    def close(self) -> None:
        for layer in self._layers:
            layer.close()


class _Change(Protocol):
    """The payload of a layer.

    Attributes:
        decoders: the number of streams over its frame, each from a source of its own.
    """

    decoders: ClassVar[int]

    def __init__(self, sources: Sequence[Source], decoded_bytes: int) -> None: ...

    def apply(self, block: Bytes) -> None:
        """Changes the next block of the tensor; blocks come in order."""
        ...

    def check_end(self) -> None:
        """Raises CorruptError where something is left over."""
        ...

    def close(self) -> None:
        """Closes without checks; may be called twice."""
        ...


class _CheckedLayer:
    """A layer, and the checksum of its result."""

    def __init__(self, layer: Layer, where: str, decoded_bytes: int, read_ahead_bytes: int) -> None:
        self._layer = layer
        self._where = f"{where}, version {layer.version}"
        self._hasher: Hasher = hasher(cast("Checksum", layer.checksum))
        self._change: _Change | None = None
        if layer.kind == "same":
            return
        extent = Extent(layer.path, layer.offset, layer.length, version=layer.file_version)

        def source() -> Source:
            return Source(extent, self._where, False, read_ahead_bytes)

        change = CHANGES[layer.kind]
        self._change = change([source() for _ in range(change.decoders)], decoded_bytes)

    def apply(self, block: Bytes) -> None:
        if self._change is not None:
            self._change.apply(block)
        self._hasher.update(block.data)

    def check(self) -> None:
        """Raises CorruptError if bytes of the payload are left over, or the checksum differs."""
        if self._change is not None:
            self._change.check_end()
        found = self._hasher.hexdigest()
        if found != self._layer.digest:
            raise _other_bytes(self._layer, self._where, found)

    def close(self) -> None:
        if self._change is not None:
            self._change.close()


class _Xor:
    """A payload of as many bytes as the tensor has, each XORed with the one at its place."""

    decoders: ClassVar[int] = 1

    def __init__(self, sources: Sequence[Source], decoded_bytes: int) -> None:
        self._stream = _opened(sources[0], decoded_bytes)
        self._scratch = np.empty(min(BLOCK_BYTES, decoded_bytes), np.uint8)

    def apply(self, block: Bytes) -> None:
        changes = self._scratch[: len(block)]
        self._stream.readinto(changes.data)
        np.bitwise_xor(block, changes, out=block)

    def check_end(self) -> None:
        self._stream.close_checked()

    def close(self) -> None:
        self._stream.close()


class _Overwrite:
    """A payload of a count, then the positions of bytes, ascending, then the bytes that go there."""

    decoders: ClassVar[int] = 2

    def __init__(self, sources: Sequence[Source], decoded_bytes: int) -> None:
        self._source = sources[0]
        self._decoded_bytes = decoded_bytes
        self._left = self._count(sources)
        size = COUNT_BYTES + (POSITION_BYTES + 1) * self._left
        self._places = _opened(sources[0], size)
        try:
            self._bytes = _opened(sources[1], size)
        except BaseException:
            self._places.close()
            raise
        self._places.skip(COUNT_BYTES)
        self._bytes.skip(COUNT_BYTES + POSITION_BYTES * self._left)
        self._positions = np.empty(0, np.int64)
        self._last = -1
        self._applied = 0

    def apply(self, block: Bytes) -> None:
        start = self._applied
        self._applied = end = start + len(block)
        while True:
            if not len(self._positions):
                self._positions = self._next_positions()
            count = int(np.searchsorted(self._positions, end))
            if not count:
                return
            new = np.empty(count, np.uint8)
            self._bytes.readinto(new.data)
            block[self._positions[:count] - start] = new
            self._positions = self._positions[count:]

    def check_end(self) -> None:
        """Positions lie within the tensor, so that none can be left over."""
        self._places.close_checked()
        self._bytes.close_checked()

    def close(self) -> None:
        self._places.close()
        self._bytes.close()

    def _count(self, sources: Sequence[Source]) -> int:
        """The number of bytes that it changes: the first number in the frame."""
        try:
            count = _first_number(self._source)
        except BaseException:
            for source in sources:
                source.close()
            raise
        if count > self._decoded_bytes:
            for source in sources:
                source.close()
            raise self._source.corrupt(
                f"it should change {count} bytes, but the tensor has {self._decoded_bytes}"
            )
        return count

    def _next_positions(self) -> npt.NDArray[np.int64]:
        count = min(_KEPT_POSITIONS, self._left)
        self._left -= count
        raw = np.empty(count * POSITION_BYTES, np.uint8)
        self._places.readinto(raw.data)
        found = raw.view("<u4").astype(np.int64)
        if count:
            self._check_ascending(found)
            self._last = int(found[-1])
        return found

    def _check_ascending(self, found: npt.NDArray[np.int64]) -> None:
        if int(found[0]) <= self._last or bool((np.diff(found) <= 0).any()):
            raise self._source.corrupt(
                f"its positions should ascend, but one at or behind {self._last + 1} does not"
            )
        if int(found[-1]) >= self._decoded_bytes:
            raise self._source.corrupt(
                f"it changes byte {int(found[-1])}, but the tensor has {self._decoded_bytes} bytes"
            )


CHANGES: Mapping[DeltaEncoding, type[_Change]] = {"xor": _Xor, "overwrite": _Overwrite}


def _opened(source: Source, decoded_bytes: int) -> ZstdStream:
    try:
        return ZstdStream(source, decoded_bytes, LEVEL)
    except BaseException:
        source.close()
        raise


def _first_number(source: Source) -> int:
    """The first u32 of a frame; the source stays at its beginning."""
    import zstandard

    start = source.at(0, min(source.length, INPUT_BYTES))
    try:
        refuse_window(source, zstandard.get_frame_parameters(start), LEVEL)
        decoder = zstandard.ZstdDecompressor(max_window_size=window_bytes(LEVEL))
        data = decoder.stream_reader(start).read(COUNT_BYTES)
    except zstandard.ZstdError as error:
        raise source.corrupt(f"zstd cannot decode it: {error}") from error
    if len(data) < COUNT_BYTES:
        raise source.corrupt(
            f"it should begin with a count of {COUNT_BYTES} bytes, but has {len(data)}"
        )
    return int.from_bytes(data, "little")


def _other_bytes(layer: Layer, where: str, found: str) -> VerificationError:
    """The error for bytes that differ from the delta's record; nothing tells which side is damaged."""
    if layer.kind == "same":
        what = "which the delta does not change: the base is another one, or it is damaged"
    else:
        what = (
            "so that the base is not the one that the delta was made of, or one of both is damaged"
        )
    file = f" in {layer.path}" if layer.path else ""
    return VerificationError(
        f"{where}: its bytes have the {layer.checksum} {found}, but {layer.digest} is recorded{file}, {what}; give the right base, restore it "
        "from a copy, or start from a full version"
    )
