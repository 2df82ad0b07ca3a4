"""One read to several targets against plain numpy indexing, in every way that a plan may choose."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.engine.books import Books, DoneUnits, TargetRun, TensorResult
from reshard.engine.movers import one_task
from reshard.engine.output import TargetOutput
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.engine.write.sinks import ChunkSink, PieceSink
from reshard.errors import CorruptError, VerificationError
from reshard.formats.codecs import decoder_bytes, encoded_room, encoder_bytes
from reshard.formats.contents import Encoding
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.dtypes import numpy_dtype
from reshard.geometry.grid import Grid
from reshard.planning.piece import Piece
from reshard.planning.plans import Fill, FillAt, MultiPlan, Plan, Read, Side, TensorPlan
from reshard.planning.strategies import SharedRead, WantedPiece, possible_reads
from tests.engine.stores import (
    CASTS,
    RAW,
    RAW_CRC,
    SOURCES,
    ZSTD,
    ZSTD_CRC,
    Folder,
    Store,
    chunk_shapes,
    random_values,
    tensor,
)
from tests.equal import assert_same

MIB = 1 << 20


pytestmark = pytest.mark.usefixtures("dirty_buffers")


@dataclass(frozen=True)
class Several:
    """A way from one tensor to several targets, what is in the tensor, and how all ends are stored."""

    shared: SharedRead
    values: np.ndarray
    source: Encoding
    targets: tuple[Encoding, ...]
    packed: tuple[bool, ...]

    def expected(self, number: int) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.values.astype(numpy_dtype(self.shared.fills[number].piece.target_dtype))


def ended(spec, encoding: Encoding, *, is_target: bool, packed: bool = False) -> Side:
    nbytes = int(np.prod(spec.chunk_shape, dtype=int)) * spec.itemsize
    stream = encoder_bytes(encoding, nbytes) if is_target else decoder_bytes(encoding, nbytes)
    room = 0 if is_target else encoded_room(encoding, nbytes)
    return Side(spec, str(encoding), encoding.compressor == "none" and not packed, stream, room)


@st.composite
def several(draw: st.DrawFn) -> Several:
    """Any way for two or three targets, with bands so small that pieces have seams everywhere."""
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    dtype = draw(st.sampled_from(SOURCES))
    source = tensor("in/w", shape, draw(chunk_shapes(shape)), dtype)
    encoding = draw(st.sampled_from((RAW, RAW_CRC, ZSTD, ZSTD_CRC)))
    wanted_pieces, encodings, packed = [], [], []
    for number in range(draw(st.integers(2, 3))):
        target_dtype = draw(st.sampled_from((dtype, dtype, *CASTS[dtype])))
        chunk = draw(st.one_of(chunk_shapes(shape), st.just(source.chunk_shape)))
        target = tensor(f"out/{number}", shape, chunk, target_dtype)
        encodings.append(draw(st.sampled_from((RAW, RAW_CRC, ZSTD, ZSTD_CRC))))
        packed.append(draw(st.sampled_from((False, False, True))))
        sides = (
            ended(source, encoding, is_target=False),
            ended(target, encodings[-1], is_target=True, packed=packed[-1]),
        )
        wanted_pieces.append(WantedPiece(Piece.whole(source, target), *sides))
    memory = draw(st.sampled_from((0, 64 * MIB)))
    found = list(possible_reads(wanted_pieces, memory, 64))
    if not found:  # some would travel encoded, and others not
        wanted_pieces, encodings, packed = wanted_pieces[:1], encodings[:1], packed[:1]
        found = list(possible_reads(wanted_pieces, memory, 64))
    shared = named(draw(st.sampled_from(found)), wanted_pieces)
    if shared.fills[0].strategy != "whole":
        band = draw(st.sampled_from((1, 40, 300, 1 << 20)))
        shared = with_bands(shared, band)
    values = draw(random_values(shape, dtype))
    return Several(shared, values, encoding, tuple(encodings), tuple(packed))


def named(shared: SharedRead, wanted_pieces: list[WantedPiece]) -> SharedRead:
    """With a fill of its own for each piece, as in a plan; those that differ in names only share one."""
    fills = zip(shared.fills, wanted_pieces, strict=True)
    return replace(shared, fills=tuple(fill.of([one], one.target) for fill, one in fills))


def with_bands(shared: SharedRead, nbytes: int) -> SharedRead:
    fills = tuple(replace(fill, band_bytes=nbytes) for fill in shared.fills)
    return replace(shared, fills=fills)


def multi_plan(shared: SharedRead) -> MultiPlan:
    plans = tuple(Plan((TensorPlan((fill,)),), 64 * MIB, 2) for fill in shared.fills)
    places = tuple(FillAt(number, 0) for number in range(len(shared.fills)))
    return MultiPlan(plans, (Read.of(places, shared.fills, shared.units),))


def carry_out(
    case: Several, root: Path, done: list[DoneUnits] | None = None
) -> tuple[list[TensorResult], list[Folder], int]:
    """What became of each target; with ``done`` only the rest is moved, after a first run of those."""
    store = Store(root / "source")
    store.add(case.shared.fills[0].source.spec, case.values, case.source)
    folders = [Folder(packed) for packed in case.packed]
    plan = multi_plan(case.shared)
    outputs = [
        TargetOutput(folder, {move.target.spec.name: encoding}, str(root / str(n)), f"t{n}")
        for n, (folder, move, encoding) in enumerate(
            zip(folders, case.shared.fills, case.targets, strict=True)
        )
    ]
    books = list(map(Books, plan.plans, outputs))
    read = 0
    before = [] if done is None else [list(map(_others, done, case.shared.fills))]
    for some in [*before, done or [None] * len(outputs)]:
        runs = list(map(TargetRun, outputs, books, some))
        read += run_batches(task_batches(plan, [store], runs), runs, 64 * MIB, 2)
    return [book.results()[0] for book in books], folders, read


def _others(done: DoneUnits, move: Fill) -> DoneUnits:
    others = DoneUnits(Plan((TensorPlan((move,)),), 0, 1))
    for unit in range(move.units.count):
        if not done.has(0, unit):
            others.add(0, unit)
    return others


@given(several())
def test_every_target_has_every_bit(case):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        results, folders, _ = carry_out(case, root)
        check(case, root, results, folders)


@given(several(), st.data())
def test_targets_that_are_done_to_different_extents_are_completed(case, data):
    """As after a kill: of each target other units are done."""
    done = []
    for move in case.shared.fills:
        units = DoneUnits(Plan((TensorPlan((move,)),), 0, 1))
        for unit in data.draw(st.sets(st.integers(0, move.units.count - 1))):
            units.add(0, unit)
        done.append(units)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        results, folders, _ = carry_out(case, root, done)
        check(case, root, results, folders)


def check(case: Several, root: Path, results, folders) -> None:
    for number, (move, result, folder) in enumerate(
        zip(case.shared.fills, results, folders, strict=True)
    ):
        found = folder.read(root / str(number), move.target.spec, case.targets[number])
        assert_same(found, case.expected(number))
        if move.strategy == "copy":
            assert result.target_digest is None
        else:
            source = np.ascontiguousarray(case.values)
            assert result.source_digest == digest_of(source.tobytes())
            assert result.target_digest == digest_of(found.tobytes())
        assert result.moved_bytes == case.values.nbytes


def by_hand(strategies, units, band=200):
    """A float32 tensor to two targets of the same chunks, the second cast."""
    source = tensor("in/w", (32, 24), (8, 12))
    targets = [tensor("out/0", (32, 24), (16, 6)), tensor("out/1", (32, 24), (16, 6), "bfloat16")]
    wanted_pieces = [
        WantedPiece(
            Piece.whole(source, target),
            ended(source, ZSTD, is_target=False),
            ended(target, RAW_CRC, is_target=True),
        )
        for target in targets
    ]
    every = possible_reads(wanted_pieces, 64 * MIB, 64)
    found = [c for c in every if [fill.strategy for fill in c.fills] == strategies]
    shared = with_bands(named(found[0], wanted_pieces), band)
    assert shared.units == units
    values = np.random.default_rng(0).normal(size=(32, 24)).astype(np.float32)
    return Several(shared, values, ZSTD, (RAW_CRC, RAW_CRC), (False, False))


SCATTER = (["scatter", "scatter"], Grid.regular((32, 24), (8, 12)))
WEAVE = (["weave", "weave"], Grid.regular((32, 24), (8, 24)))
BLOCK = (["block", "block"], Grid.regular((32, 24), (16, 12)))
WAYS = [SCATTER, WEAVE, BLOCK]
IDS = ["scatter", "weave", "block"]


@pytest.mark.parametrize("kind", WAYS, ids=IDS)
def test_the_source_is_read_once(kind, tmp_path):
    case = by_hand(*kind)
    results, _, read = carry_out(case, tmp_path)
    stored = (tmp_path / "source").stat().st_size
    assert read == results[0].read_bytes == results[1].read_bytes == stored


class Swapped:
    """The elements of two columns change places."""

    def put(self, piece, band, box):
        rows = band.copy()
        rows[..., 0], rows[..., 1] = band[..., 1], band[..., 0]
        super().put(piece, rows, box)


SAID = (
    r"digest \w{16}, but what was read has \w{16}",
    r"weighted sum \w{16}, but what was read gives \w{16}",  # elements change their order
)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", WAYS, ids=IDS)
def test_a_defect_in_one_target_is_caught_there(kind, which, tmp_path, monkeypatch):
    case = by_hand(*kind)
    name = "ChunkSink" if kind is BLOCK else "PieceSink"
    sink = {"ChunkSink": ChunkSink, "PieceSink": PieceSink}[name]

    def made(unit, *args, **kwargs):
        kinds = (sink, type("Broken", (Swapped, sink), {}))
        return kinds[unit.target == which](unit, *args, **kwargs)

    monkeypatch.setattr(one_task, name, made)
    text = rf"^'out/{which}': what was written has {SAID[which]}; the output was discarded; check this machine's memory, then run again$"
    with pytest.raises(VerificationError, match=text):
        carry_out(case, tmp_path)


@pytest.mark.parametrize("kind", WAYS, ids=IDS)
def test_an_error_of_the_source_is_about_all_targets(kind, tmp_path, monkeypatch):
    case = by_hand(*kind)
    add = Store.add

    def damaged(store, spec, values, encoding):
        add(store, spec, values, encoding)
        data = bytearray(store.path.read_bytes())
        data[0] ^= 255  # of the box's magic number
        store.path.write_bytes(data)

    monkeypatch.setattr(Store, "add", damaged)
    with pytest.raises(CorruptError, match="tensor 'in/w', chunk") as caught:
        carry_out(case, tmp_path)
    assert caught.value.target is None


def test_an_error_of_one_target_names_it(tmp_path):
    case = by_hand(*SCATTER)
    (tmp_path / "1").write_text("no folder")
    with pytest.raises(Exception, match=r"^target 't1': tensor 'out/1'") as caught:
        carry_out(case, tmp_path)
    assert caught.value.target == "t1"
