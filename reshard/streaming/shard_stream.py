"""ShardStream: the tensors of one device as one safetensors file, streamed.

``shard_parts`` finds the box of each tensor in one shard of a layout.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import LayoutError
from reshard.formats.base import Reader
from reshard.formats.contents import StoredTensor
from reshard.formats.quantized import Quantized, quantization
from reshard.formats.safetensors.header import HeaderEntry, safetensors_header
from reshard.geometry.grid import Box, Grid
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.layout.tensor_layout import device_boxes
from reshard.layout.tensor_spec import SaveSliceInfo, TensorSpec
from reshard.planning.keep_pairs import refuse_cut, refuse_parted
from reshard.planning.pair_layouts import TargetPairs
from reshard.planning.piece import Piece
from reshard.planning.rules import rewrites
from reshard.planning.target_layouts import Layout, TensorSplit, keeps_layouts, look_up, split
from reshard.streaming.tensor_stream import TensorStream

GATHERED_BYTES = 256 << 10
"""Small tensors are joined up to this size: handing over a piece costs as much as copying this many bytes."""


class ShardStream:
    """One shard as a safetensors file, which can be read in ranges and more than once.

    Made by ``OpenedCheckpoint.stream_shard``. Its metadata has one entry, ``reshard.slices``: JSON with the
    number of the shard, the number of all shards, and the offset of each slice in its full tensor.

    Attributes:
        shard, shards: the number of the shard, and the number of all shards.
        names: of its tensors, in the order of their bytes.
        header: the bytes before those of the tensors.
        nbytes: size of the whole file.
        missing_chunks: the number of its chunks that are not stored; the fill value is taken in their place.
        state: a digest; the same state means the same bytes.
    """

    def __init__(self, reader: Reader, shard: StreamedShard, max_memory: int) -> None:
        self.shard = shard.number
        self.shards = shard.count
        self.names = tuple(part.name for part in shard.parts)
        entries = [HeaderEntry(part.name, part.dtype, part.box.shape) for part in shard.parts]
        self.header = safetensors_header(entries, {"reshard.slices": _slices(shard)})
        self._streams = [
            TensorStream(
                reader, part.stored, part.box, part.dtype, max_memory, saturate=part.saturate
            )
            for part in shard.parts
        ]
        sizes = (len(self.header), *(stream.nbytes for stream in self._streams))
        self._starts = tuple(accumulate(sizes, initial=0))
        self.nbytes = self._starts[-1]
        self.missing_chunks = sum(stream.missing_chunks for stream in self._streams)
        self.state = self._state()

    @property
    def memory_bytes(self) -> int:
        """The most memory that one read takes for buffers and decoders."""
        return max((s.memory_bytes for s in self._streams), default=0) + 2 * GATHERED_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return self.read()

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes ``start:stop`` of the file, in pieces, as in ``TensorStream.read``."""
        stop = self.nbytes if stop is None else min(stop, self.nbytes)
        return _gathered(self._pieces(min(max(0, start), stop), stop))

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        yield self.header[start:stop]
        for begin, end, stream in zip(
            self._starts[1:], self._starts[2:], self._streams, strict=False
        ):
            if start < end and begin < stop:
                yield from stream.read(max(0, start - begin), stop - begin)

    def _state(self) -> str:
        found = hashlib.sha256(self.header)
        for stream in self._streams:
            found.update(stream.state.encode())
        return found.hexdigest()[:32]


def _slices(shard: StreamedShard) -> str:
    document = {
        "format": "reshard.slices",
        "version": 1,
        "shard": shard.number,
        "shards": shard.count,
        "tensors": {part.name: _slice(part) for part in shard.parts},
    }
    return json.dumps(document, separators=(",", ":"))


def _slice(part: ShardPart) -> dict[str, object]:
    info = SaveSliceInfo.from_box(part.name, part.stored.spec.shape, part.box)
    return {
        "full_shape": info.full_shape,
        "offset": info.var_offset,
        "shape": info.var_shape,
        "dtype": part.dtype,
    }


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= GATHERED_BYTES:
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)


class ShardPart(Struct, frozen=True):
    """The box of one tensor in a shard.

    Attributes:
        name: in the shard.
        box: in the coordinates of the full tensor.
        saturate: True if the cast clips values to the largest finite one.
    """

    name: str
    stored: StoredTensor
    dtype: str
    box: Box
    saturate: bool = False


class StreamedShard(Struct, frozen=True):
    """One of the ``count`` shards of a layout."""

    number: int
    count: int
    parts: tuple[ShardPart, ...]


def shard_parts(
    reader: Reader, layout: Layout | None, changes: Changes, number: int
) -> StreamedShard:
    """The parts of shard ``number``, in the tree's order; whole tensors are in every shard.

    The number of shards is that of the tensor with the most; a tensor with fewer is missing from the last shards.
    Raises LayoutError if there is no such shard, and the errors of the layout and the changes.
    """
    own = layout.changes if isinstance(layout, LayoutFile) else Changes()
    wanted = _whole_parts(reader, own + changes)
    look_up(layout, [part.name for part in wanted])
    found = quantization(reader)
    bare = {part.name: _bare(part.name, part.stored.spec, part.dtype) for part in wanted}
    sources = {part.name: part.stored.spec for part in wanted}
    alike = TargetPairs.of(found, bare, sources, layout).splits
    splits = [alike.get(n) or split(spec, sources[n], layout) for n, spec in bare.items()]
    _refuse_parted(found, reader, wanted, splits, layout)
    count = max(map(_count, splits), default=1)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        raise LayoutError(f"shard {number!r} does not exist: the layout has {_shards(count)}")
    parts = (
        replace(part, box=box)
        for part, parted in zip(wanted, splits, strict=True)
        if (box := _box(parted, part.name, part.stored.spec.shape, number)) is not None
    )
    return StreamedShard(number, count, tuple(parts))


def _refuse_parted(
    found: Quantized | None,
    reader: Reader,
    wanted: Sequence[ShardPart],
    splits: Sequence[TensorSplit],
    layout: Layout | None,
) -> None:
    """Raises PlanError for codes of quantised weights that are cast, or newly cut inside their blocks."""
    specs = {name: tensor.spec for name, tensor in reader.tensors.items()}
    cast = ((Piece.whole(p.stored.spec, replace(p.stored.spec, dtype=p.dtype)),) for p in wanted)
    refuse_parted(found, specs, cast, in_memory=True)
    pairs = {} if found is None else found.pairs
    for part, parted in zip(wanted, splits, strict=True):
        if part.stored.spec.name in pairs and not keeps_layouts(layout):
            refuse_cut(pairs[part.stored.spec.name], part.name, parted.slices)


def _whole_parts(reader: Reader, changes: Changes) -> list[ShardPart]:
    """Every tensor that the changes keep, whole."""
    tensors = reader.tensors
    specs = {name: t.spec for name, t in tensors.items()}
    keys = [name for name, t in tensors.items() if t.is_key]
    kept = rewrites(changes, [leaf.name for leaf in reader.leaves], specs, keys)
    return [
        ShardPart(
            rewrite.target,
            tensors[rewrite.source],
            rewrite.dtype or specs[rewrite.source].dtype,
            Box.full(specs[rewrite.source].shape),
            rewrite.saturate,
        )
        for rewrite in kept
        if rewrite.source in tensors
    ]


def _bare(name: str, source: TensorSpec, dtype: str) -> TensorSpec:
    return replace(
        source,
        name=name,
        dtype=dtype,
        storage=Grid.whole(source.shape),
        chunk_shape=None,
        layout=None,
    )


def _count(parted: TensorSplit) -> int:
    if parted.partition is not None:
        return parted.slices.count
    mesh = parted.layout.device_mesh if parted.layout is not None else None
    return 1 if mesh is None else math.prod(mesh.shape)


def _box(parted: TensorSplit, name: str, shape: Sequence[int], number: int) -> Box | None:
    if parted.partition is not None:
        boxes = list(parted.slices.boxes())
        return boxes[number] if number < len(boxes) else None
    if parted.layout is None or parted.layout.device_mesh is None:
        return Box.full(shape)
    if number >= _count(parted):
        return None
    return device_boxes(parted.layout, shape, name)[number]


def _shards(count: int) -> str:
    return "only shard 0" if count == 1 else f"{count} shards; ask for one from 0 to {count - 1}"
