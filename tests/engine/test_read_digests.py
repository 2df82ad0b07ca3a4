"""Digests of stored tensors, against a plain CRC-64/NVME of the whole array."""

from __future__ import annotations

import numpy as np
import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from reshard.engine.decode import box_plan
from reshard.engine.limits import Limits
from reshard.engine.read_boxes import BATCH_UNITS
from reshard.engine.read_digests import tensor_digests
from reshard.errors import CorruptError, StorageError
from tests.engine.stores import RAW, RAW_CRC, ZSTD, ZSTD_CRC, Store, tensor
from tests.orbax_trees import random_array

LIMITS = Limits(64 << 20, 2)
ENCODINGS = (RAW, RAW_CRC, ZSTD, ZSTD_CRC)


def plain(values):
    return f"{crc64nvme(np.ascontiguousarray(values).tobytes()):016x}"


@st.composite
def tensors(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    chunk = tuple(draw(st.integers(1, max(1, n) + 1)) for n in shape)
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int4", "bool", "complex128"]))
    values = random_array(np.random.default_rng(draw(st.integers(0, 99))), shape, dtype).copy()
    if shape and draw(st.booleans()):
        values[1:] = 0
    return tensor("a/w", shape, chunk, dtype), values, draw(st.sampled_from(ENCODINGS))


@given(tensors())
def test_the_digest_is_a_plain_crc_of_the_whole(tmp_path_factory, drawn):
    spec, values, encoding = drawn
    store = Store(tmp_path_factory.mktemp("t") / "source")
    store.add(spec, values, encoding)
    assert tensor_digests(store, LIMITS) == {"a/w": plain(values)}


def two_tensors(tmp_path):
    store = Store(tmp_path / "source")
    for number, encoding in enumerate((ZSTD, RAW_CRC)):
        values = np.random.default_rng(number).normal(size=(300, 30)).astype(np.float32)
        store.add(tensor(f"w{number}", (300, 30), (1, 30)), values, encoding)
    return store


def test_only_the_named_tensors_are_read(tmp_path):
    store = two_tensors(tmp_path)
    assert tensor_digests(store, LIMITS, ["w1"]) == {"w1": tensor_digests(store, LIMITS)["w1"]}


def test_progress_ends_at_everything(tmp_path):
    seen = []
    tensor_digests(two_tensors(tmp_path), LIMITS, progress=seen.append)
    assert len(seen) == -(-2 * 300 // BATCH_UNITS)
    assert (seen[-1].moved_bytes, seen[-1].total_bytes) == (72000, 72000)
    assert {p.stage for p in seen} == {"reading back"}
    assert [p.tasks_done for p in seen] == list(range(1, len(seen) + 1))


def test_a_chunk_that_does_not_decode_is_named(tmp_path):
    store = two_tensors(tmp_path)
    store.path.write_bytes(store.path.read_bytes()[:-200])
    with pytest.raises(
        CorruptError, match=r"tensor 'w1', chunk \[29\d, 0\]: .*stored in .*/source"
    ):
        tensor_digests(store, LIMITS)


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path):
    store = two_tensors(tmp_path)
    data = bytearray(store.path.read_bytes())
    data[-200] ^= 1
    store.path.write_bytes(bytes(data))
    with pytest.raises(CorruptError, match=r"its CRC32C is recorded as"):
        tensor_digests(store, LIMITS)


def test_a_file_that_is_gone_is_named(tmp_path):
    store = two_tensors(tmp_path)
    store.path.unlink()
    with pytest.raises(
        StorageError, match=r"tensor 'w\d', chunk \[\d+, 0\]: cannot read '.*/source': No such file"
    ):
        tensor_digests(store, LIMITS)


def test_padding_that_is_passed_over_is_checked_all_the_same(tmp_path, monkeypatch):
    """Whole bands of padding hold no element, but the chunk's checksum is about them too."""
    monkeypatch.setattr(box_plan, "BAND_BYTES", 1 << 10)
    store = Store(tmp_path / "source")
    store.add(tensor("w", (3, 64), (64, 64)), np.ones((3, 64), np.float32), RAW_CRC)
    assert tensor_digests(store, LIMITS)
    for place in (-1, -2000):
        data = bytearray(store.path.read_bytes())
        data[place] ^= 1
        store.path.write_bytes(bytes(data))
        with pytest.raises(CorruptError, match=r"tensor 'w', chunk \[0, 0\]: its CRC32C"):
            tensor_digests(store, LIMITS)
        data[place] ^= 1
        store.path.write_bytes(bytes(data))
