"""Small chunks that are the same on both sides: moved in one go, and checked all the same."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from reshard.engine.movers import one_task
from reshard.engine.output import TargetOutput
from reshard.engine.write.chunk_files import store_chunk
from reshard.errors import CorruptError, VerificationError
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.plans import Plan, TensorPlan
from tests.engine.stores import (
    RAW,
    RAW_CRC,
    ZSTD,
    ZSTD_CRC,
    Folder,
    Store,
    batches,
    by_hand,
    carry_out,
    run,
    side,
    tensor,
)
from tests.equal import assert_same
from tests.orbax_trees import random_array

ENCODINGS = (RAW, RAW_CRC, ZSTD, ZSTD_CRC)
IDS = ("raw", "raw+crc32c", "zstd", "zstd+crc32c")
SPEC = tensor("layer/w", (24, 16), (8, 4), "bfloat16")
CHUNK_BYTES = 8 * 4 * 2


pytestmark = pytest.mark.usefixtures("dirty_buffers")


@pytest.fixture
def values():
    """Random bits, the first row of chunks zeros, which the store leaves out."""
    values = random_array(np.random.default_rng(5), SPEC.shape, SPEC.dtype).copy()
    values[:8] = 0
    return values


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "source")


def whole_move(source_encoding, target_encoding, spec=SPEC):
    sides = side(spec, source_encoding), side(spec, target_encoding)
    return by_hand(Piece.whole(spec, spec), *sides, "whole", spec.storage, CHUNK_BYTES)


@pytest.mark.parametrize("packed", [False, True], ids=["files", "packed"])
@pytest.mark.parametrize("target_encoding", ENCODINGS, ids=IDS)
@pytest.mark.parametrize("source_encoding", ENCODINGS, ids=IDS)
def test_every_encoding_arrives_bit_for_bit(
    source_encoding, target_encoding, packed, values, store, tmp_path
):
    store.add(SPEC, values, source_encoding)
    move, target = whole_move(source_encoding, target_encoding), Folder(packed)
    encodings = {SPEC.name: target_encoding}
    (result,) = carry_out([move], store, tmp_path / "t", target, encodings)
    assert_same(target.read(tmp_path / "t", SPEC, target_encoding), values)
    assert result.source_digest == result.target_digest == digest_of(values.tobytes())
    assert result.moved_bytes == values.nbytes
    stored = [extent for extent in store.extents.values() if extent]
    assert result.read_bytes == sum(extent.length for extent in stored)


def test_chunks_of_unequal_size_take_what_they_need_of_the_buffer(store, tmp_path):
    ragged = TensorSpec("w", (20,), "float32", Grid.regular((20,), (8,)))
    numbers = np.arange(1, 21, dtype=np.float32)
    store.add(ragged, numbers, ZSTD)
    carry_out([whole_move(ZSTD, RAW_CRC, ragged)], store, tmp_path / "t", Folder(), {"w": RAW_CRC})
    assert_same(Folder().read(tmp_path / "t", ragged, RAW_CRC), numbers)


@pytest.mark.parametrize(
    ("encoding", "place"), [(RAW_CRC, -9), (ZSTD_CRC, -9), (ZSTD, 0)], ids=["raw", "zstd", "header"]
)
def test_a_damaged_chunk_is_named(encoding, place, values, store, tmp_path):
    store.add(SPEC, values, encoding)
    extent = store.extents[SPEC.name, (1, 1)]
    data = bytearray(store.path.read_bytes())
    data[extent.offset + place % extent.length] ^= 16
    store.path.write_bytes(data)
    with pytest.raises(
        CorruptError, match=r"tensor 'layer/w', chunk \[1, 1\]: .*stored in .*/source"
    ):
        carry_out([whole_move(encoding, RAW)], store, tmp_path / "t", Folder(), {SPEC.name: RAW})


def test_bytes_that_change_between_decoding_and_writing_are_caught(
    values, store, tmp_path, monkeypatch
):
    def flip_and_store(task, target, data, output):
        data[0] ^= 1
        return store_chunk(task, target, data, output)

    monkeypatch.setattr(one_task, "store_chunk", flip_and_store)
    store.add(SPEC, values, ZSTD)
    with pytest.raises(VerificationError, match="'layer/w': what was written has digest"):
        carry_out([whole_move(ZSTD, RAW)], store, tmp_path / "t", Folder(), {SPEC.name: RAW})


def test_whole_tasks_run_in_other_processes(values, store, tmp_path):
    store.add(SPEC, values, ZSTD)
    plan = Plan((TensorPlan((whole_move(ZSTD, RAW_CRC),)),), 64 << 20, 2)
    output = TargetOutput(Folder(), {SPEC.name: RAW_CRC}, str(tmp_path / "t"))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        (result,) = run(plan, batches(plan, store, output), output, processes)
    assert result.target_digest == digest_of(values.tobytes())
    assert_same(Folder().read(tmp_path / "t", SPEC, RAW_CRC), values)
