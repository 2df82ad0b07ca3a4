"""Computed tensors: tensors that are made of others as they are read, by a formula.

A Computation (deltas, dequantise, an average, an adapter) makes one open checkpoint of another: some of its tensors are computed, and
everything behind it sees ordinary tensors. A computed tensor has a grid of its own. Each of its chunks is located as an Extent with a
ComputedChunk: the formula, and what must be read of each operand. ``engine/decode/computed_stream.py`` reads and computes, window by window::

    codes   1024 × 4096 ─┐
                         ├─ a chunk, 512 × 4096 ── its windows, 16 × 4096 each: formula.compute → bytes in order
    scales     8 × 32   ─┘
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from reshard.formats.base import Chunks, Reader
from reshard.formats.codecs import decoder_bytes, is_seekable
from reshard.formats.computed.formula import Formula
from reshard.formats.contents import (
    ComputedChunk,
    Encoding,
    Extent,
    Leaf,
    OperandWindow,
    RecordedRange,
    SourceChunk,
    Stored,
    StoredTensor,
)
from reshard.formats.leaf_paths import renamed
from reshard.geometry.grid import Box, Cuts, Grid, Index
from reshard.layout.tensor_spec import TensorSpec

COMPUTED_BYTES = 1500
"""Memory of a computed tensor, an overestimate."""

CHUNK_BYTES = 16 << 20
"""The most bytes of a chunk whose operands can be read from any place: small, since a reader of a part of it computes what is before it."""


class Operand(Struct, frozen=True, eq=False):
    """A stored tensor that a computed tensor is made of.

    Attributes:
        reader: the open checkpoint that has it, under the name ``stored.spec.name``.
        is_held: true if what a chunk needs of it is read once, at first, and kept in memory: for small operands, and for those whose
            elements are wanted in another order than they are stored. Others are read window by window.
    """

    reader: Reader
    stored: StoredTensor
    is_held: bool = False

    @classmethod
    def of(cls, reader: Reader, name: str, *, is_held: bool = False) -> Operand:
        """The tensor of that name."""
        return cls(reader, reader.tensors[name], is_held)


class ComputedTensor(Struct, frozen=True, eq=False):
    """A tensor and what it is made of.

    Attributes:
        stored: as everything else sees it; ``computed_tensor`` makes it.
    """

    stored: StoredTensor
    formula: Formula
    operands: tuple[Operand, ...]


def computed_tensor(
    spec: TensorSpec, formula: Formula, operands: Sequence[Operand]
) -> ComputedTensor:
    """The tensor ``spec``, made of operands.

    The grid of ``spec`` has cuts where every operand that is not held has one, so that each stored chunk is read for one chunk of the
    result. Where operands can be read from any place it is cut further.
    """
    held = [operand.stored for operand in operands if operand.is_held]
    streamed = [operand.stored for operand in operands if not operand.is_held] or held
    is_free = all(is_seekable(s.encoding) and not s.encoding.checksum for s in streamed)
    if is_free and not formula.is_sequential:
        spec = replace(spec, storage=_cut_small(spec.storage, formula, spec.itemsize))
    memory = _memory_bytes(spec, formula, operands)
    ahead = max((each.stored.encoding.read_ahead_bytes for each in operands), default=0)
    encoding = Encoding("computed", spec=str(memory), read_ahead_bytes=ahead)
    may_lack = any(operand.stored.may_be_missing for operand in operands)
    is_checked = formula.is_sequential or all(_is_protected(operand) for operand in operands)
    stored = StoredTensor(spec, encoding, bytes(spec.itemsize), may_lack, is_checked=is_checked)
    return ComputedTensor(stored, formula, tuple(operands))


def _is_protected(operand: Operand) -> bool:
    stored = operand.stored
    own = stored.digest or stored.crcs or stored.encoding.checksum or stored.is_checked
    return bool(own or operand.reader.recorded_ranges(stored.spec.name))


def _cut_small(grid: Grid, formula: Formula, itemsize: int) -> Grid:
    """A grid with chunks of at most ``CHUNK_BYTES`` where the formula's grain allows it: rows are cut before columns."""
    sizes, most = list(grid.largest), CHUNK_BYTES // itemsize
    grain = formula.grain or (1,) * len(sizes)
    for dim in formula.cut_order or range(len(sizes)):
        unit = grain[dim]
        excess = -(-math.prod(sizes) // most)
        if excess <= 1:
            break
        wanted = max(1, sizes[dim] // excess)
        # A power of two, which parts no block of scales that is one.
        wanted = max(unit, (1 << wanted.bit_length() - 1) // unit * unit)
        sizes[dim] = min(sizes[dim], wanted)
    return Grid(grid.shape, tuple(map(_cut_more, grid.cuts, sizes)))


def _cut_more(cuts: Cuts, size: int) -> tuple[int, ...]:
    return (0, *(end for a, b in pairwise(cuts) for end in (*range(a + size, b, size), b)))


def _memory_bytes(spec: TensorSpec, formula: Formula, operands: Sequence[Operand]) -> int:
    """Memory of a stream over the largest chunk: operands, their decoders, and what the formula takes for a window."""
    chunk = Box.full(spec.storage.largest) if spec.storage.count else Box.full(spec.shape)
    window = min(chunk.size, formula.window_elements)
    total = formula.fixed_bytes + window * (formula.scratch_bytes + spec.itemsize)
    for operand, box in zip(operands, formula.boxes(chunk), strict=True):
        stored, itemsize = operand.stored, operand.stored.spec.itemsize
        parts = zip(box.shape, stored.spec.storage.largest, strict=True)
        # Chunks side by side in a row are open together; of held ones one after the other.
        across = 1 if operand.is_held else math.prod([-(-n // max(1, m)) + 1 for n, m in parts][1:])
        elements = box.size if operand.is_held else min(box.size, 2 * window)
        decoder = decoder_bytes(stored.encoding, stored.spec.chunk_bytes)
        total += elements * itemsize + across * decoder
    return total


def computed_reader(
    base: Reader,
    computed: Mapping[str, ComputedTensor],
    left_out: Collection[str] = (),
    added: Sequence[ComputedTensor] = (),
) -> Reader:
    """``base`` with computed tensors in the places of stored ones, by the names of these.

    Args:
        left_out: names of tensors that are not seen any more, such as scales.
        added: tensors that stand in no other's place; they come last.
    """
    leaves: list[Leaf] = []
    tensors: dict[str, StoredTensor] = {}
    by_name = {made.stored.spec.name: made for made in (*computed.values(), *added)}
    items = base.container.naming_items
    for leaf in base.leaves:
        made = computed.get(leaf.name)
        if made is not None:
            # Metadata of the leaf is of what is stored.
            leaf = replace(renamed(leaf, made.stored.spec.name, items), meta={})
        elif leaf.name in left_out:
            continue
        leaves.append(leaf)
        if leaf.tensor:
            tensors[leaf.name] = base.tensors[leaf.name] if made is None else made.stored
    trees = [item.name for item in base.container.items if item.is_tree]
    for made in added:
        name = made.stored.spec.name
        leaves.append(renamed(Leaf("", (), trees[0] if trees else ""), name, items))
        tensors[name] = made.stored
    return replace(
        base,
        tensors=MappingProxyType(tensors),
        leaves=leaves,
        chunks=ComputedChunks(base, by_name),
        metadata_bytes=base.metadata_bytes + COMPUTED_BYTES * len(by_name),
        conversion="",
        made=None,
        takes_record=False,
    )


class ComputedChunks(Chunks):
    """The chunks of a checkpoint in which some tensors are computed.

    Attributes:
        base: the checkpoint with the stored tensors.
        computed: the computed ones, by their names.
    """

    def __init__(self, base: Reader, computed: Mapping[str, ComputedTensor]) -> None:
        self.base = base
        self.computed = computed

    @property
    def origin(self) -> Chunks:
        return self.base.chunks.origin

    def locate(self, name: str, index: Index) -> Extent | None:
        made = self.computed.get(name)
        if made is None:
            return self.base.locate(name, index)
        spec = made.stored.spec
        box = spec.storage.box(index)
        boxes = made.formula.boxes(box)
        operands = tuple(map(_window, made.operands, boxes))
        first = next((c.extent for o in operands for c in o.chunks if c.extent), None)
        return Extent(
            first.path if first else self.base.uri,
            first.offset if first else 0,
            sum(operand.stored_bytes for operand in operands),
            version=first.version if first else "",
            computed=ComputedChunk(box, spec.dtype, made.formula, operands),
        )

    def copies(self, name: str) -> Sequence[tuple[Extent, ...]]:
        return () if name in self.computed else self.base.copies(name)

    def recorded_ranges(self, name: str) -> Sequence[RecordedRange]:
        return () if name in self.computed else self.base.recorded_ranges(name)

    def lacking(self, names: Iterable[str]) -> dict[str, Stored]:
        names = list(names)
        found = self.base.chunks.lacking([n for n in names if n not in self.computed])
        for name in filter(self.computed.__contains__, names):
            for operand in self.computed[name].operands:
                own = operand.stored.spec.name
                if (lack := operand.reader.chunks.lacking([own]).get(own)) is not None:
                    found[name] = lack
        return found

    def with_missing(self, reader: Reader, may_be_missing: bool) -> Reader:
        of = (operand.reader for made in self.computed.values() for operand in made.operands)
        readers = {id(each): each for each in (self.base, *of)}  # each is changed once
        known = {n: each.chunks.with_missing(each, may_be_missing) for n, each in readers.items()}
        tensors, computed = dict(reader.tensors), {}
        for name, made in self.computed.items():
            operands = tuple(
                Operand.of(known[id(o.reader)], o.stored.spec.name, is_held=o.is_held)
                for o in made.operands
            )
            may = any(o.stored.may_be_missing for o in operands)
            stored = replace(made.stored, may_be_missing=may)
            computed[name] = replace(made, stored=stored, operands=operands)
            tensors[name] = stored
        base = known[id(self.base)]
        tensors |= {n: t for n, t in base.tensors.items() if n in tensors and n not in computed}
        return replace(
            reader, tensors=MappingProxyType(tensors), chunks=ComputedChunks(base, computed)
        )


def recorded_operands(reader: Reader, names: Iterable[str]) -> Iterator[tuple[Reader, set[str]]]:
    """The stored tensors of which computed ones are made, by their checkpoints, if these record checksums of a whole tensor alone.

    A chunk's own checksum, and those that a formula compares, are seen as the chunk is read.
    """
    found: dict[int, tuple[Reader, set[str]]] = {}
    waiting = [(reader, name) for name in names]
    while waiting:
        holder, name = waiting.pop()
        stored, chunks = holder.tensors[name], holder.chunks
        if isinstance(chunks, ComputedChunks) and name in chunks.computed:
            made = chunks.computed[name]
            if not made.formula.is_sequential:
                waiting += [(each.reader, each.stored.spec.name) for each in made.operands]
        elif (stored.digest or stored.crcs) and not stored.encoding.checksum:
            found.setdefault(id(holder), (holder, set()))[1].add(name)
    yield from found.values()


def _window(operand: Operand, box: Box) -> OperandWindow:
    """The part of an operand that a chunk reads, with the places of its chunks."""
    stored, spec = operand.stored, operand.stored.spec
    indices = itertools.product(*spec.storage.overlapping(box)) if box.size else ()
    chunks = tuple(SourceChunk.at(index, spec, operand.reader) for index in indices)
    return OperandWindow(
        spec.name, spec.dtype, stored.encoding, stored.fill, box, chunks, operand.is_held
    )
