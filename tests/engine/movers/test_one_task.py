"""Moves carried out on real files against plain numpy indexing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from reshard.checksums.tensor_digest import CRC64NVME, finish
from reshard.engine.movers.one_task import execute
from reshard.engine.output import TargetOutput
from reshard.errors import CorruptError
from reshard.formats.codecs import compressed
from reshard.formats.contents import Encoding
from reshard.formats.slices.slice_file import digest_of
from reshard.formats.zarr.zarr3_json import zarr_json
from reshard.geometry.grid import Box, Grid
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_plan
from reshard.planning.plans import Plan, TensorPlan
from tests.engine.stores import (
    RAW,
    RAW_CRC,
    ZSTD,
    ZSTD_CRC,
    Case,
    Folder,
    Store,
    batches,
    by_hand,
    carry_out,
    cases,
    side,
    tensor,
)
from tests.equal import assert_same
from tests.orbax_trees import random_array

MIB = 1 << 20


def store_of(case: Case, root: Path) -> Store:
    store = Store(root / "source")
    store.add(case.move.source.spec, case.values, case.source_encoding, case.recorded)
    return store


def assert_arrives(case: Case) -> None:
    """Carries the whole tensor out, and compares bits, both digests and bytes moved."""
    with tempfile.TemporaryDirectory() as folder:
        root, target = Path(folder), Folder(case.packed)
        encodings = {"out/w": case.target_encoding}
        (result,) = carry_out([case.move], store_of(case, root), root / "t", target, encodings)
        found = target.read(root / "t", case.move.target.spec, case.target_encoding)
    assert_same(found, case.expected)
    assert result.source_digest == digest_of(np.ascontiguousarray(case.values).tobytes())
    assert result.target_digest == digest_of(found.tobytes())
    assert result.moved_bytes == case.values.nbytes


@given(cases())
def test_a_whole_tensor_arrives_bit_for_bit_in_every_way(case):
    assert_arrives(case)


@given(cases().filter(lambda c: c.move.at_once and c.source_encoding.compressor == "zstd"))
def test_a_chunk_decoded_at_once_may_share_memory_with_later_bands(case):
    """Small chunks are read at once too, so that their bytes share a place with pieces and rows."""
    with patch.object(compressed, "INPUT_BYTES", 1):
        assert_arrives(case)


@given(cases(offsets=True))
def test_a_box_arrives_turned_and_at_its_place(case):
    spec, place = case.move.target.spec, case.move.piece.target_box
    with tempfile.TemporaryDirectory() as folder:
        root, target = Path(folder), Folder(case.packed)
        plan = Plan((TensorPlan((case.move,)),), 64 * MIB, 1)
        encodings = {"out/w": case.target_encoding}
        output = TargetOutput(target, encodings, str(root / "t"))
        tasks = [t for b in batches(plan, store_of(case, root), output) for t in b]
        results = [r for of in execute(tasks, [output.of_tasks]) for r in of]
        parts = [p for r in results for p in r.chunks]
        for index in {p.index for p in parts if p.stored_bytes is None}:
            close(root / "t", target, case, index, [p for p in parts if p.index == index])
        touched = {i for i in spec.storage.indices() if spec.storage.box(i).intersect(place)}
        assert {p.index for p in parts} == (touched or {()})
        found = np.zeros(spec.shape, case.expected.dtype)
        for index in touched or {()}:
            box = spec.storage.box(index)
            piece = tensor("out/w", box.shape, spec.chunk_shape, spec.dtype)
            found[box.slices] = Renumbered(target, index).read(
                root / "t", piece, case.target_encoding
            )
    assert_same(found[place.slices], case.expected)
    source_crc = target_crc = 0
    for result in results:
        (sums,) = result.sums
        source_crc, target_crc = source_crc ^ sums.source, target_crc ^ sums.target
    read = np.zeros_like(case.values)
    taken = case.move.piece.source_box.slices
    read[taken] = case.values[taken]
    assert f"{finish(CRC64NVME, source_crc, read.nbytes):016x}" == digest_of(read.tobytes())
    # What no move fills counts as zeros, so that the moves of several sources add up.
    assert f"{finish(CRC64NVME, target_crc, found.nbytes):016x}" == digest_of(found.tobytes())


class Renumbered(Folder):
    """One chunk of a folder as if it were a tensor of its own."""

    def __init__(self, folder: Folder, index: tuple[int, ...]) -> None:
        super().__init__(
            folder.packed, {("out/w", (0,) * len(index)): folder.values.get(("out/w", index))}
        )
        self._places = folder.places("out/w", index)

    def places(self, name, index):  # noqa: ARG002  of the interface
        return self._places


def close(root, target, case, index, parts):
    """What the thread that collects results does with a chunk that several tasks wrote."""
    if any(part.stored_bytes for part in parts):
        return
    from reshard.engine.write.chunk_files import close_chunk

    crc = 0
    for part in parts:
        crc ^= part.crc32c
    spec = case.move.target.spec
    stored = int(np.prod(spec.stored_shape(index), dtype=int)) * spec.itemsize
    trailer = crc if case.target_encoding.checksum else None
    (place,) = target.places("out/w", index)
    close_chunk(str(root / place.file), trailer, stored)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", [ZSTD, ZSTD_CRC, RAW_CRC], ids=["zstd", "zstd+crc", "raw+crc"])
def test_identical_chunks_are_copied_encoded(encoding, packed, tmp_path):
    spec = tensor("w", (20, 9), (7, 4), "bfloat16")
    values = random_array(np.random.default_rng(3), spec.shape, "bfloat16").copy()
    values[:7] = 0
    store = Store(tmp_path / "source")
    store.add(spec, values, encoding)
    both = side(spec, encoding)
    move = by_hand(Piece.whole(spec, spec), both, both, "copy", spec.storage, 1)
    target = Folder(packed)
    (result,) = carry_out([move], store, tmp_path / "t", target, {"w": encoding})
    assert_same(target.read(tmp_path / "t", spec, encoding), values)
    assert (result.source_digest, result.target_digest, result.moved_bytes) == (
        None,
        None,
        values.nbytes,
    )
    for index in spec.storage.indices():
        if not packed and (extent := store.locate("w", index)):
            stored = (tmp_path / "source").read_bytes()[extent.offset :][: extent.length]
            (place,) = target.places("w", index)
            assert (tmp_path / "t" / place.file).read_bytes() == stored


@pytest.mark.parametrize("target_encoding", [RAW, RAW_CRC, ZSTD_CRC], ids=["raw", "crc", "zstd"])
@pytest.mark.parametrize("strategy", ["scatter", "weave", "block"])
def test_tensorstore_reads_what_each_strategy_writes(strategy, target_encoding, tmp_path):
    if strategy != "block" and target_encoding is ZSTD_CRC:
        target_encoding = Encoding(checksum=True)
    shape = (23, 18)
    source, target = tensor("w", shape, (5, 4)), tensor("w", shape, (8, 18))
    values = np.arange(23 * 18, dtype=np.float32).reshape(shape)
    store = Store(tmp_path / "source")
    store.add(source, values, ZSTD)
    sides = side(source, ZSTD), side(target, target_encoding)
    units = {
        "scatter": source.storage,
        "weave": Grid(shape, (source.storage.cuts[0], (0, 18))),
        "block": Grid.whole(shape),
    }[strategy]
    move = by_hand(Piece.whole(source, target), *sides, strategy, units, 200)
    carry_out([move], store, tmp_path / "t", Folder(), {"w": target_encoding})
    (tmp_path / "t/w/zarr.json").write_bytes(zarr_json(target, target_encoding))
    opened = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/t/w/"}).result()
    assert_same(opened.read().result(), values)


@st.composite
def planned(draw):
    case = draw(cases())
    placement = case.move.piece
    wanted = WantedPiece(
        placement, side(case.move.source.spec, case.source_encoding), case.move.target
    )
    return case, wanted


@given(planned(), st.integers(1, 4))
def test_what_the_planner_chooses_arrives(planned, workers):
    case, wanted = planned
    plan = make_plan([wanted], 64 * MIB, workers)
    with tempfile.TemporaryDirectory() as folder:
        root, target = (
            Path(folder),
            Folder(case.packed and plan.tensors[0].fills[0].strategy in ("block", "copy", "whole")),
        )
        encodings = {"out/w": case.target_encoding}
        carry_out(list(plan.fills), store_of(case, root), root / "t", target, encodings, workers)
        found = target.read(root / "t", case.move.target.spec, case.target_encoding)
    assert_same(found, case.expected)


def damaged(tmp_path, encoding, damage, strategy="scatter"):
    """Carries out rows to columns from a source that ``damage`` changed, as bytes."""
    source, target = tensor("layer/w", (64, 64), (16, 64)), tensor("layer/w", (64, 64), (64, 16))
    store = Store(tmp_path / "source")
    store.add(source, random_array(np.random.default_rng(1), (64, 64), "float32"), encoding)
    store.path.write_bytes(damage(store.path.read_bytes()))
    units = source.storage if strategy == "scatter" else Grid.whole((64, 64))
    move = by_hand(
        Piece.whole(source, target),
        side(source, encoding),
        side(target, RAW_CRC),
        strategy,
        units,
        999,
    )
    carry_out([move], store, tmp_path / "t", Folder(), {"layer/w": RAW_CRC})


def flipped(data):
    return data[:5000] + bytes([data[5000] ^ 4]) + data[5001:]


@pytest.mark.parametrize("strategy", ["scatter", "block"])
@pytest.mark.parametrize(
    ("encoding", "damage"),
    [
        (ZSTD, lambda d: d[:-100]),
        (RAW, lambda d: d[:-100]),
        (RAW_CRC, flipped),
        (ZSTD_CRC, flipped),
    ],
    ids=["zstd short", "raw short", "raw flipped", "zstd flipped"],
)
def test_a_damaged_chunk_is_named(encoding, damage, strategy, tmp_path):
    with pytest.raises(
        CorruptError, match=r"tensor 'layer/w', chunk \[\d, 0\]: .*stored in .*/source"
    ):
        damaged(tmp_path, encoding, damage, strategy)


def test_an_encoded_chunk_that_ends_early_is_refused(tmp_path):
    spec = tensor("w", (64, 64), (16, 64))
    store = Store(tmp_path / "source")
    store.add(spec, random_array(np.random.default_rng(1), (64, 64), "float32"), ZSTD)
    store.path.write_bytes(store.path.read_bytes()[:-10])
    both = side(spec, ZSTD)
    move = by_hand(Piece.whole(spec, spec), both, both, "copy", spec.storage, 1)
    with pytest.raises(
        CorruptError, match=r"ends inside a chunk: expected .* restore it from another copy"
    ):
        carry_out([move], store, tmp_path / "t", Folder(), {"w": ZSTD})


def test_boxes_of_two_sources_stack_into_one_target(tmp_path):
    """Offsets along a new leading axis, each source its own move; digests of the parts add up."""
    store = Store(tmp_path / "source")
    rng = np.random.default_rng(5)
    target = tensor("out/w", (2, 6, 4), (1, 6, 4))
    crc = 0
    values = []
    for number in range(2):
        spec = tensor(f"layers/{number}", (1, 4, 6), (1, 3, 2))
        values.append(random_array(rng, spec.shape, "float32"))
        store.add(spec, values[-1], ZSTD)
        place = Box((number, 0, 0), (number + 1, 6, 4))
        placement = Piece(
            spec.name, Box.full(spec.shape), "out/w", place, (0, 2, 1), "float32", "float32"
        )
        units = Grid.whole((1, 4, 6))
        move = by_hand(placement, side(spec, ZSTD), side(target, ZSTD), "block", units, 64)
        output = TargetOutput(Folder(), {"out/w": ZSTD}, str(tmp_path / "t"))
        (batch,) = batches(Plan((TensorPlan((move,)),), MIB, 1), store, output)
        ((result,),) = execute(batch, [output.of_tasks])
        crc ^= result.sums[0].target
    expected = np.concatenate(values).transpose(0, 2, 1)
    found = Folder().read(tmp_path / "t", target, ZSTD)
    assert_same(found, expected)
    assert f"{finish(CRC64NVME, crc, found.nbytes):016x}" == digest_of(found.tobytes())
