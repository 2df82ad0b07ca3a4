"""Comparing checkpoints tensor by tensor: equal, different, and in what."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.engine.limits import Limits
from reshard.engine.read_digests import tensor_digests
from reshard.verification.compare import compare_recorded, compare_stored
from tests.engine.stores import RAW, RAW_CRC, ZSTD, Store, tensor

LIMITS = Limits(64 << 20, 2)


@pytest.fixture
def pair(tmp_path):
    """The same two tensors in other chunks and another codec."""
    a, b = Store(tmp_path / "a", "A"), Store(tmp_path / "b", "B")
    for name in ("v", "w"):
        values = np.random.default_rng(ord(name)).normal(size=(12, 9)).astype(np.float32)
        a.add(tensor(name, (12, 9), (5, 9)), values, ZSTD)
        b.add(tensor(name, (12, 9), (12, 2)), values, RAW)
    return a, b


def verdicts(found):
    return {v.name: (v.status, v.detail) for v in found.tensors}


def change(store, name, **members):
    tensor_ = store.tensors[name]
    store.tensors[name] = replace(tensor_, **members)


def test_other_chunks_and_codecs_are_equal(pair):
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found) == {"v": ("equal", ""), "w": ("equal", "")}
    assert (found.a, found.b, found.differences) == ("A", "B", 0)
    assert all(t.digest_a == t.digest_b is not None for t in found.tensors)


def test_a_single_bit_is_a_difference(pair):
    data = bytearray(pair[1].path.read_bytes())
    data[0] ^= 1
    pair[1].path.write_bytes(bytes(data))
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found) == {"v": ("different", "the stored bits differ"), "w": ("equal", "")}
    assert found.differences == 1


def test_what_one_side_lacks_is_named(pair):
    del pair[0].tensors["v"], pair[1].tensors["w"]
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found) == {
        "w": ("only in A", "B has no tensor 'w'"),
        "v": ("only in B", "A has no tensor 'v'"),
    }
    assert found.differences == 2


@pytest.mark.parametrize(
    ("members", "detail"),
    [
        ({"spec": tensor("v", (9, 12), (9, 2))}, "shape [12, 9] in A, [9, 12] in B"),
        ({"spec": tensor("v", (12, 9), (12, 2), "int32")}, "dtype float32 in A, int32 in B"),
        ({"is_key": True}, "a PRNG key in B only"),
    ],
)
def test_what_is_unlike_is_not_read(pair, members, detail):
    change(pair[1], "v", **members)
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found)["v"] == ("different", detail)
    assert found.tensors[0].digest_a is None


def test_a_checkpoint_is_compared_with_its_own_record(pair):
    store = pair[0]
    change(store, "v", digest=tensor_digests(store, LIMITS)["v"])
    found = compare_recorded(store, LIMITS)
    assert verdicts(found) == {
        "v": ("recorded", ""),
        "w": ("not recorded", "no digest was recorded when it was written"),
    }
    assert (found.b, found.differences) == (None, 0)


def test_bytes_that_changed_since_they_were_recorded_are_a_difference(pair):
    change(pair[0], "v", digest="0123456789abcdef")
    found = compare_recorded(pair[0], LIMITS)
    assert verdicts(found)["v"] == (
        "different",
        "the stored bits differ from those recorded when it was written",
    )
    assert (found.tensors[0].digest_b, found.differences) == ("0123456789abcdef", 1)


def test_what_cannot_be_read_hides_nothing_else(pair):
    """Every tensor gets its verdict; the damaged one says which chunk of which side."""
    pair[1].path.write_bytes(pair[1].path.read_bytes()[:-200])
    found = verdicts(compare_stored(*pair, LIMITS))
    assert found["v"] == ("equal", "")
    assert found["w"][0] == "damaged"
    assert found["w"][1].startswith("B: tensor 'w', chunk [0, ")
    alone = verdicts(compare_recorded(pair[1], LIMITS))
    assert (alone["v"][0], alone["w"][0]) == ("not recorded", "damaged")


def test_a_side_that_changed_since_it_was_recorded_is_damaged_even_where_both_agree(pair):
    change(pair[0], "v", digest="0123456789abcdef")
    assert verdicts(compare_stored(*pair, LIMITS))["v"] == (
        "damaged",
        "A: the stored bits differ from those recorded when it was written (0123456789abcdef)",
    )


def test_checksums_of_chunks_find_damage_where_no_digest_was_recorded(tmp_path):
    store = Store(tmp_path / "a", "A")
    store.add(tensor("v", (5, 5), (2, 3)), np.ones((5, 5), np.float32), RAW_CRC)
    assert verdicts(compare_recorded(store, LIMITS))["v"][0] == "checksum"
