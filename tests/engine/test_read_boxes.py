"""Every sink gets the elements of its unit, each once, however they are decoded and wherever they are put."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine import read_boxes
from reshard.engine.buffers import ArenaPool
from reshard.engine.decode import box_plan, chunk_reader
from reshard.engine.decode.box_plan import (
    ChunkMemory,
    StoredBox,
    plan_boxes,
    quickest_memory,
    stream_memory,
)
from reshard.engine.limits import Limits
from reshard.engine.read_boxes import BoxBatch, BoxUnit, Sources, batched, fill_array, read_batch
from reshard.errors import CorruptError
from reshard.formats.contents import Encoding, Extent, SourceChunk, StoredTensor
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.task_cost import AT_ONCE_BYTES
from tests.engine.stores import RAW_CRC, ZSTD, ZSTD_CRC, Store, encode, tensor

MIB = 1 << 20
ENCODINGS = (Encoding(), RAW_CRC, ZSTD, ZSTD_CRC)


class Kept:
    """A sink that keeps the elements of a box of uint32; with ``is_direct`` it lends its memory."""

    is_dense = False

    def __init__(self, unit: BoxUnit[bool]) -> None:
        self.box = unit.box
        self.array = np.zeros(unit.box.shape, np.uint32)
        self.is_direct = unit.of
        self.copied = 0
        self.times = np.zeros(unit.box.shape, np.int8)
        self._lent = False

    def direct(self, band: Box) -> np.ndarray | None:
        place = self.array[band.relative_to(self.box.start).slices]
        self._lent = self.is_direct and bool(place.flags.c_contiguous)
        return place.reshape(-1).view(np.uint8) if self._lent else None

    def take(self, band: Box, *elements: np.ndarray) -> None:
        inside = band.relative_to(self.box.start).slices
        self.times[inside] += 1
        if not self._lent:
            self.copied += band.size
            self.array[inside] = elements[0]

    def done(self) -> Kept:
        return self


class DenseKept(Kept):
    is_dense = True

    def take(self, band: Box, *elements: np.ndarray) -> None:
        assert elements[0].flags.c_contiguous
        super().take(band, *elements)


def chunk_of(values: np.ndarray, encoding: Encoding, box: Box) -> SourceChunk:
    inline = encode(values, encoding)
    return SourceChunk((0,) * values.ndim, Extent("it", 0, len(inline), inline), box, values.shape)


def unit_of(
    chunk: SourceChunk, encoding: Encoding, box: Box, memory: ChunkMemory, *, is_direct: bool
) -> BoxUnit[bool]:
    """A box of the only chunk of a tensor of uint32."""
    shape = chunk.box.stop
    spec = TensorSpec("w", shape, "uint32", Grid.whole(shape))
    stored = StoredTensor(spec, encoding, bytes(4), may_be_missing=True)
    side = StoredBox(stored, box, "uint32", chunk=chunk)
    plan = memory.plan(chunk, box, encoding, 4)
    return BoxUnit(is_direct, (side,), plan, spec.storage.cuts, side.nbytes, plan.memory_bytes)


def read(unit: BoxUnit[bool], *, checks_all: bool = False, sink: type[Kept] = Kept) -> Kept:
    (done,) = read_batch(
        BoxBatch((unit,), unit.memory_bytes), sink, Sources((), checks_all=checks_all)
    )
    return done.result


@given(st.data())
def test_a_box_of_a_chunk_reaches_its_sink(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    kept = tuple(data.draw(st.integers(1, n)) for n in shape)  # the rest is padding
    origin = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    values = np.arange(1, math.prod(shape) + 1, dtype=np.uint32).reshape(shape)
    encoding = data.draw(st.sampled_from(ENCODINGS))
    chunk = chunk_of(values, encoding, Box.full(kept).shift(origin))
    ends = [sorted(data.draw(st.sets(st.integers(0, n), min_size=2, max_size=2))) for n in kept]
    inside = Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))
    with pytest.MonkeyPatch.context() as patch:
        shortest = data.draw(st.sampled_from((1, 1 << 10)))
        for module in (chunk_reader, box_plan):  # which share the constant
            patch.setattr(module, "MIN_RUN_BYTES", shortest)
        patch.setattr(box_plan, "BAND_BYTES", data.draw(st.sampled_from((4, 16, 1 << 20))))
        at_once = data.draw(st.booleans())
        memory = stream_memory(encoding, values.nbytes)
        if at_once:
            memory = quickest_memory(encoding, values.nbytes, 64 * MIB)
        is_direct = data.draw(st.booleans())
        unit = unit_of(chunk, encoding, inside.shift(origin), memory, is_direct=is_direct)
        (done,) = read_batch(
            BoxBatch((unit,), unit.memory_bytes),
            Kept,
            Sources((), checks_all=data.draw(st.booleans())),
            data.draw(st.sampled_from((None, ArenaPool(64 * MIB, 1)))),
        )
    np.testing.assert_array_equal(done.result.array, values[inside.slices])
    assert (done.result.times == 1).all()
    if encoding.compressor == "none":
        assert done.read_bytes >= inside.size * 4 or encoding.checksum
    else:
        assert done.read_bytes == chunk.extent.length


def test_a_chunk_is_decoded_straight_into_the_memory_of_its_sink():
    values = np.arange(24, dtype=np.uint32).reshape(6, 4)
    memory = quickest_memory(ZSTD, values.nbytes, 64 * MIB)
    chunk = chunk_of(values, ZSTD, Box.full((6, 4)))
    kept = read(unit_of(chunk, ZSTD, chunk.box, memory, is_direct=True))
    np.testing.assert_array_equal(kept.array, values)
    assert not kept.copied


def test_a_unit_tells_its_sink_of_an_empty_box():
    values = np.arange(8, dtype=np.uint32)
    chunk = chunk_of(values, ZSTD, Box.full((8,)))
    unit = unit_of(chunk, ZSTD, Box((3,), (3,)), stream_memory(ZSTD, 32), is_direct=False)
    assert read(unit).array.shape == (0,)


def test_what_is_not_needed_at_the_end_is_not_decoded():
    values = np.arange(1 << 20, dtype=np.uint32).reshape(1 << 10, 1 << 10)
    chunk = chunk_of(values, ZSTD_CRC, Box.full(values.shape))
    memory = quickest_memory(ZSTD_CRC, values.nbytes, 64 * MIB)
    assert memory.is_at_once
    damaged = bytearray(chunk.extent.inline)
    damaged[-1] ^= 1
    chunk = SourceChunk(
        (0, 0), Extent("it", 0, len(damaged), bytes(damaged)), chunk.box, values.shape
    )
    kept = read(
        unit_of(chunk, ZSTD_CRC, Box((0, 0), (10, 1 << 10)), memory, is_direct=False),
    )
    np.testing.assert_array_equal(kept.array, values[:10])
    whole = unit_of(chunk, ZSTD_CRC, chunk.box, memory, is_direct=False)
    with pytest.raises(
        CorruptError, match=r"tensor 'w', chunk \[0, 0\]: its CRC32C is recorded as"
    ):
        read(whole)
    (done,) = read_batch(BoxBatch((whole,), 0), Kept, Sources((), keeps_damage=True))
    assert "chunk [0, 0]: its CRC32C is recorded as" in done.damage


def test_a_chunk_that_is_not_stored_gives_its_fill():
    chunk = SourceChunk((2,), None, Box((8,), (12,)), (4,))
    spec = TensorSpec("w", (12,), "uint32", Grid.whole((12,)))
    stored = StoredTensor(spec, Encoding(), b"\7\0\0\0", may_be_missing=True)
    side = StoredBox(stored, Box((9,), (12,)), "uint32", chunk=chunk)
    plan = stream_memory(Encoding(), 16).plan(chunk, side.box, Encoding(), 4)
    kept = read(BoxUnit(True, (side,), plan, spec.storage.cuts, 12, plan.memory_bytes))
    np.testing.assert_array_equal(kept.array, [7, 7, 7])


@pytest.mark.parametrize("sink", [Kept, DenseKept])
def test_boxes_of_many_chunks_are_read_side_by_side(tmp_path, sink):
    store = Store(tmp_path / "source")
    values = np.arange(60 * 70, dtype=np.uint32).reshape(60, 70)
    store.add(tensor("w", (60, 70), (7, 11), "uint32"), values, ZSTD_CRC)
    stored = store.tensors["w"]
    boxes = [Box((3, 5), (50, 66)), Box((0, 0), (60, 70)), Box((8, 12), (9, 13))]
    for number, box in enumerate(boxes):
        sides = (StoredBox.of(stored, box), StoredBox.of(stored, box))
        plan = plan_boxes(sides, 64 * MIB, 64 * MIB, 100)
        edges = stored.spec.storage.cuts
        unit = BoxUnit(False, sides, plan, edges, sides[0].nbytes, plan.memory_bytes)
        (done,) = read_batch(BoxBatch((unit,), unit.memory_bytes), sink, Sources((store, store)))
        np.testing.assert_array_equal(done.result.array, values[box.slices], str(number))
        out = np.zeros(box.shape, np.uint32)
        fill_array(sides[0], store, out, 64 * MIB)
        np.testing.assert_array_equal(out, values[box.slices])


def test_small_units_share_a_batch_and_large_ones_do_not():
    values = np.arange(4, dtype=np.uint32)
    memory = stream_memory(Encoding(), 16)
    small = unit_of(
        chunk_of(values, Encoding(), Box.full((4,))),
        Encoding(),
        Box.full((4,)),
        memory,
        is_direct=False,
    )
    sizes = [len(batch.units) for batch in batched([small] * 300)]
    assert sizes == [128, 128, 44]
    large = BoxUnit(False, small.sides, small.plan, small.edges, read_boxes.BATCH_BYTES, 1 << 30)
    found = list(batched([small, large, small]))
    assert [len(batch.units) for batch in found] == [2, 1]
    assert [batch.memory_bytes for batch in found] == [1 << 30, small.memory_bytes]


def test_located_units_travel_to_other_processes():
    values = np.arange(24, dtype=np.uint32).reshape(6, 4)
    chunk = chunk_of(values, ZSTD, Box.full((6, 4)))
    unit = unit_of(chunk, ZSTD, chunk.box, stream_memory(ZSTD, 96), is_direct=False)
    assert read(pickle.loads(pickle.dumps(unit))).array.tolist() == values.tolist()


def test_a_side_that_is_not_located_needs_a_reader():
    values = np.arange(4, dtype=np.uint32)
    unit = unit_of(
        chunk_of(values, ZSTD, Box.full((4,))),
        ZSTD,
        Box.full((4,)),
        stream_memory(ZSTD, 16),
        is_direct=False,
    )
    side = StoredBox.of(unit.sides[0].stored, unit.box)
    lost = BoxUnit(False, (side,), unit.plan, unit.edges, 16, unit.memory_bytes)
    with pytest.raises(ValueError, match=r"chunk \(0,\) of 'w' was not located"):
        read(lost)


def test_results_come_as_batches_end(tmp_path):
    store = Store(tmp_path / "source")
    values = np.arange(64, dtype=np.uint32)
    store.add(tensor("w", (64,), (4,), "uint32"), values, ZSTD)
    stored = store.tensors["w"]
    memory = stream_memory(ZSTD, 16)
    units = []
    for index in stored.spec.storage.indices():
        chunk = SourceChunk.at(index, stored.spec, store)
        side = StoredBox(stored, chunk.box, "uint32", chunk=chunk)
        plan = memory.plan(chunk, chunk.box, ZSTD, 4)
        units.append(BoxUnit(False, (side,), plan, stored.spec.storage.cuts, 16, memory.total))
    batches = [BoxBatch((unit,), unit.memory_bytes) for unit in units]
    ended = read_boxes.read_boxes(batches, Kept, (), Limits(64 * MIB, 2))
    found = {done.unit.box.start[0]: done.result.array.tolist() for one in ended for done in one}
    assert [n for at in sorted(found) for n in found[at]] == values.tolist()


def test_memory_to_decode_at_once_is_taken_only_where_it_gains_and_fits():
    at_once = quickest_memory(ZSTD, 8 * MIB, 64 * MIB)
    assert at_once.is_at_once
    assert at_once.decoded == 8 * MIB
    assert at_once.total >= 16 * MIB
    assert quickest_memory(ZSTD, 8 * MIB, at_once.total) == at_once
    streamed = stream_memory(ZSTD, 8 * MIB)
    assert (streamed.decoded, streamed.encoded) == (2 * MIB, 0)
    assert quickest_memory(ZSTD, 8 * MIB, at_once.total - 1) == streamed
    assert not quickest_memory(ZSTD, AT_ONCE_BYTES + 1, 1 << 30).is_at_once
    assert not quickest_memory(Encoding(), 8 * MIB, 1 << 30).is_at_once  # raw: nothing to gain
    cast = quickest_memory(ZSTD, 8 * MIB, 64 * MIB, is_cast=True)
    assert cast.total == at_once.total + (2 << 20)
