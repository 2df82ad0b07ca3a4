"""Trees that Flax, Orbax and the msgpack package write are read leaf by leaf; damaged and hostile ones are refused by name."""

from __future__ import annotations

import random
import struct
import tracemalloc

import flax.serialization
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orbax.checkpoint import msgpack_utils

from reshard.errors import CorruptError, FormatError, ReshardError
from reshard.formats.contents import PathKey
from reshard.formats.limits import MAX_LEAVES
from reshard.formats.orbax import aggregate_file, msgpack_values
from reshard.formats.orbax.aggregate_file import MsgpackTree
from reshard.storage.location import locate
from tests.equal import assert_same
from tests.formats.orbax.read_msgpack import array_of, cursor_of, leaves_of
from tests.orbax_trees import DTYPES, random_array


def refused(folder, data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        leaves_of(folder, data)
    assert text in str(caught.value)


NUMBERS = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63), 0.5, -1e300]  # fmt: skip


@pytest.mark.parametrize("writer", [flax.serialization, msgpack_utils], ids=["flax", "orbax"])
def test_every_value_comes_back(writer, tmp_path):
    rng = np.random.default_rng(0)
    expected = {f"d/{dtype}": random_array(rng, (2, 3), dtype) for dtype in DTYPES}
    expected |= {f"n/{i}": number for i, number in enumerate(NUMBERS)}
    expected |= {
        "none": None, "true": True, "false": False, "complex": 1.5 - 2j, "text": "Grüße" * 30, "dict": {}, "list": [],
        "scalar": np.float32(3), "empty": np.zeros((0, 4), np.int8), "rank 0": np.array(7, np.uint16),
    }  # fmt: skip
    nested = {"d": {k[2:]: v for k, v in expected.items() if k[:2] == "d/"}, "n": NUMBERS}
    nested |= {k: v for k, v in expected.items() if "/" not in k}
    data = writer.msgpack_serialize(nested)
    found = leaves_of(tmp_path, data)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None or isinstance(value, dict | list):
            assert (type(found[name]), found[name]) == (type(value), value)
        else:
            assert_same(array_of(found[name], data), value, name)


def test_lists_and_dicts_are_told_apart_and_keep_their_order(tmp_path):
    data = msgpack.packb({"b": [1, {"x": 2}], "a": {"0": 3}})
    found = list(MsgpackTree(cursor_of(tmp_path, data)))
    b, a, zero = PathKey("b"), PathKey("a"), PathKey("0", is_sequence=True)
    assert found == [
        ((b, zero), 1), ((b, PathKey("1", is_sequence=True), PathKey("x")), 2), ((a, PathKey("0")), 3),
    ]  # fmt: skip


def test_tuples_of_orbax_are_sequences(tmp_path):
    data = msgpack_utils.msgpack_serialize({"t": (1, (), (2, "x"))})
    assert leaves_of(tmp_path, data) == {"t/0": 1, "t/1": (), "t/2/0": 2, "t/2/1": "x"}


@pytest.mark.parametrize("writer", [flax.serialization, msgpack_utils], ids=["flax", "orbax"])
@pytest.mark.parametrize("chunk_bytes", [4, 40, 100])
def test_arrays_in_pieces_are_joined(writer, chunk_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_CHUNK_SIZE", chunk_bytes)
    array = np.arange(105, dtype=np.float32).reshape(5, 7, 3)
    data = writer.msgpack_serialize({"a": {"big": array}, "b": 1})
    found = leaves_of(tmp_path, data)
    assert list(found) == ["a/big", "b"]
    assert len(found["a/big"].parts) == -(-105 // (chunk_bytes // 4))
    assert_same(array_of(found["a/big"], data), array)


def test_arrays_are_not_read(tmp_path):
    """Of an array of 2 GiB only the header is looked at."""
    nbytes = 1 << 31
    inner = (
        b"\x93\x91\xce" + struct.pack(">I", nbytes) + b"\xa5uint8\xc6" + struct.pack(">I", nbytes)
    )
    head = b"\x81\xa1w\xc9" + struct.pack(">IB", nbytes + len(inner), 1) + inner
    with (tmp_path / "f").open("wb") as file:
        file.write(head)
        file.truncate(len(head) + nbytes)
    place = locate(tmp_path / "f")
    tracemalloc.start()
    try:
        found = list(MsgpackTree(msgpack_values.MsgpackCursor(place, place.status())))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert [(value.shape, value.parts) for _, value in found] == [
        ((nbytes,), ((len(head), nbytes),))
    ]


@pytest.mark.parametrize("window", [1, 7, 64])
def test_any_window_reads_the_same(window, tmp_path, monkeypatch):
    data = flax.serialization.msgpack_serialize({"a": np.arange(9.0), "b": ["x" * 100, 2**40]})
    expected = leaves_of(tmp_path, data)
    monkeypatch.setattr(msgpack_values, "WINDOW_BYTES", window)
    assert leaves_of(tmp_path, data) == expected


def test_every_cut_is_refused(tmp_path):
    data = flax.serialization.msgpack_serialize(
        {"a": np.arange(3.0), "b": [1.5, "x", None], "c": 2}
    )
    for end in range(len(data)):
        with pytest.raises(
            CorruptError, match=r"F, byte \d+: .*the file is damaged or was cut short"
        ):
            leaves_of(tmp_path, data[:end])
    refused(tmp_path, data + b"\0", CorruptError, "more bytes after the end of the tree")


@pytest.mark.parametrize(
    "head", ["dfffffffff", "ddffffffff", "deffff", "dcffff", "dbffffffff", "c6ffffffff", "c9ffffffff01"]
)  # fmt: skip
def test_huge_lengths_are_refused_before_anything_is_made(head, tmp_path):
    tracemalloc.start()
    try:
        refused(
            tmp_path, bytes.fromhex("81a161" + head + "00"), CorruptError, "more than fit into the"
        )
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k"])
def test_deep_nesting_is_refused(opening, tmp_path):
    refused(
        tmp_path,
        opening * 100_000 + b"\x01",
        FormatError,
        "F nests 257 levels deep; at most 256 are read",
    )
    assert len(leaves_of(tmp_path, opening * 256 + b"\x01")) == 1


def ext(code: int, payload: bytes) -> bytes:
    return b"\x81\xa1w" + msgpack.packb(msgpack.ExtType(code, payload))


def packed(shape, dtype, data) -> bytes:
    return ext(1, msgpack.packb((shape, dtype, data)))


WRONG = {
    "more bytes than the shape": (packed([2], "float32", bytes(12)), CorruptError, "an array of float32 and shape [2] should have 8 bytes, but has 12"),
    "fewer bytes": (packed([2, 2], "int8", b"\0"), CorruptError, "an array of int8 and shape [2, 2] should have 4 bytes, but has 1"),
    "an overflowing shape": (packed([2**32, 2**32], "int8", b""), CorruptError, "should have 18,446,744,073,709,551,616 bytes, but has 0"),
    "negative size": (packed([-1], "int8", b""), CorruptError, "expected a dimension of an array, a number from 0"),
    "size that is a bool": (packed([True], "int8", b"\0"), CorruptError, "expected a dimension of an array, a number from 0"),
    "too many dimensions": (packed([1] * 33, "int8", b"\0"), FormatError, "33 dimensions are too many; at most 32 are read"),
    "objects": (packed([1], "object", b"\0" * 8), FormatError, "the dtype 'object' is not supported; supported are bool"),
    "text": (packed([1], "str96", b"\0" * 12), FormatError, "the dtype 'str96' is not supported"),
    "dates": (packed([1], "datetime64[ns]", b"\0" * 8), FormatError, "the dtype 'datetime64[ns]' is not supported"),
    "a long dtype": (packed([1], "x" * 100, b"\0"), CorruptError, "expected the name of a dtype, found the type str of 100 bytes"),
    "a dtype that is a number": (packed([1], 5, b"\0"), CorruptError, "expected the name of a dtype, found the type int of 0 bytes"),
    "a shape that is a number": (packed(1, "int8", b"\0"), CorruptError, "expected the shape of an array, found the type int"),
    "data that is a number": (packed([1], "int8", 5), CorruptError, "expected the bytes of an array, found the type int"),
    "two parts": (ext(1, msgpack.packb(([1], "int8"))), CorruptError, "an array should be its shape, dtype and bytes, but is not"),
    "bytes behind": (ext(1, msgpack.packb(([1], "int8", b"\0")) + b"\0"), CorruptError, "an ext type should end here, but ends at byte"),
    "a scalar with a shape": (ext(3, msgpack.packb(([1], "int8", b"\0"))), CorruptError, "a numpy scalar should have no shape, but has (1,)"),
    "a complex of one": (ext(2, msgpack.packb((1.0,))), CorruptError, "a complex number should be two numbers"),
    "a complex of text": (ext(2, msgpack.packb((1.0, "x"))), CorruptError, "a part of a complex number should be a number"),
    "a tuple of a number": (ext(4, b"\x01"), CorruptError, "a tuple should be an array, but is of the type int"),
    "a tuple with bytes behind": (ext(4, b"\x91\x01\x01"), CorruptError, "an ext type should end here, but ends at byte"),
    "an empty tuple with bytes behind": (ext(4, b"\x90\x01"), CorruptError, "an ext type should end here, but ends at byte"),
    "another type": (ext(9, b"\0"), FormatError, "the ext type 9 is not known; known are numpy arrays (1)"),
    "a time": (b"\x81\xa1w\xd6\xff" + b"\0" * 4, FormatError, "the ext type -1 is not known"),
    "no value": (b"\x81\xa1w\xc1", CorruptError, "F, byte 3: expected a value, found the byte 0xc1"),
    "a key that is a number": (b"\x81\x01\x02", FormatError, "a key of the tree is of the type int; expected text"),
    "a key that is bytes": (msgpack.packb({"a": {b"k": 1}}), FormatError, "a key of 'a' is of the type bin; expected text"),
    "a key twice": (b"\x81\xa1a\x82\xa1k\x01\xa1k\x02", CorruptError, "'a' has the key 'k' twice"),
    "a key that is no text": (b"\x81\xa1\xff\x01", CorruptError, "expected text in UTF-8"),
    "bytes": (msgpack.packb({"a": {"b": b"xyz"}}), FormatError, "F: the leaf 'a/b' is of the type bytes, which is not supported; leave it out in the program"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_itself_is_refused(case, tmp_path):
    refused(tmp_path, *WRONG[case])


MARK = "__msgpack_chunked_array__"
PIECE = msgpack.ExtType(1, msgpack.packb(([2], "int8", b"ab")))
OTHER = msgpack.ExtType(1, msgpack.packb(([1], "uint8", b"c")))
WRONG_PIECES = {
    "not true": ({MARK: False, "shape": {"0": 2}, "chunks": {"0": PIECE}}, "should be an array in pieces, but is not"),
    "alone": ({MARK: True}, "should be an array in pieces, but is not"),
    "no chunks": ({MARK: True, "shape": {"0": 0}, "chunks": {}}, "should have a shape and chunks, but has not"),
    "no shape": ({MARK: True, "x": 1, "chunks": {"0": PIECE}}, "should have a shape and chunks, but has not"),
    "a shape that is a list": ({MARK: True, "shape": [2], "chunks": {"0": PIECE}}, "expected the pieces of an array by number, found the type array"),
    "a gap": ({MARK: True, "shape": {"0": 4}, "chunks": {"0": PIECE, "2": PIECE}}, "expected the key '1', found '2'"),
    "too few": ({MARK: True, "shape": {"0": 4}, "chunks": {"0": PIECE}}, "an array of int8 and shape [4] should have 4 bytes, but has 2"),
    "two dtypes": ({MARK: True, "shape": {"0": 3}, "chunks": {"0": PIECE, "1": OTHER}}, "should have one dtype, but have int8, uint8"),
    "a number": ({MARK: True, "shape": {"0": 2}, "chunks": {"0": 5}}, "expected a piece of an array"),
    "a complex number": ({MARK: True, "shape": {"0": 2}, "chunks": {"0": msgpack.ExtType(2, msgpack.packb((1.0, 2.0)))}}, "expected a piece of an array"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_PIECES)
def test_pieces_that_contradict_themselves_are_refused(case, tmp_path):
    content, text = WRONG_PIECES[case]
    refused(tmp_path, msgpack.packb({"w": content}), CorruptError, text)


def test_too_many_dimensions_and_pieces_are_refused(tmp_path):
    shape = {str(i): 1 for i in range(33)}
    data = msgpack.packb({"w": {MARK: True, "shape": shape, "chunks": {"0": PIECE}}})
    refused(tmp_path, data, FormatError, "33 dimensions are too many")
    pieces = {str(i): 0 for i in range((1 << 16) + 1)}
    data = msgpack.packb({"w": {MARK: True, "shape": {"0": 1}, "chunks": pieces}})
    refused(
        tmp_path,
        data,
        FormatError,
        "an array in 65,537 pieces is not read; expected at most 65,536",
    )


def test_more_values_than_any_tree_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(aggregate_file, "MAX_LEAVES", 1000)
    assert len(leaves_of(tmp_path, msgpack.packb([1] * 1000))) == 1000
    refused(
        tmp_path,
        msgpack.packb([1] * 1001),
        FormatError,
        "F has more than 1,000 values, which is more than is read",
    )
    assert MAX_LEAVES == 1 << 20


def test_names_that_one_long_key_makes_long_are_counted(tmp_path, monkeypatch):
    """A key of 4 KB is in the file once, and in the name of every leaf below it."""
    monkeypatch.setattr(aggregate_file, "MAX_ALL_NAMES_CHARACTERS", 100_000)
    data = msgpack.packb({"k" * 4000: list(range(100))})
    refused(tmp_path, data, FormatError, "F has more than 100,000 characters of names and strings")
    refused(
        tmp_path,
        msgpack.packb({"k": "x" * 100_001}),
        FormatError,
        "characters of names and strings",
    )
    assert len(leaves_of(tmp_path, msgpack.packb({"k" * 4000: list(range(20))}))) == 20


@given(st.binary(max_size=80))
def test_random_bytes_are_a_tree_or_refused(tmp_path, data):
    try:
        found = leaves_of(tmp_path, data)
    except ReshardError:
        return
    # What is taken, the msgpack package takes too.
    msgpack.unpackb(data, strict_map_key=False, max_ext_len=100, ext_hook=msgpack.ExtType, raw=True)
    assert found


@given(st.integers(0, 2**32))
def test_damaged_files_are_refused_or_read_as_stock_reads_them(tmp_path, seed):
    rng = random.Random(seed)
    whole = {
        "a": np.arange(4, dtype=ml_dtypes.bfloat16),
        "b": [1.5, "x", {"c": np.int8(3)}],
        "n": 1j,
        "z": -5,
    }
    data = bytearray(flax.serialization.msgpack_serialize(whole))
    for _ in range(rng.choice((1, 1, 3))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        found = leaves_of(tmp_path, bytes(data))
    except ReshardError:
        return
    expected = flax.serialization.msgpack_restore(bytes(data))
    leaves = {}
    _flatten("", expected, leaves)
    assert found.keys() == leaves.keys()
    for name, value in leaves.items():
        if hasattr(value, "dtype"):
            assert_same(array_of(found[name], bytes(data)), value, name)
        else:
            assert found[name] == value or found[name] != found[name]


def _flatten(prefix, node, leaves):
    if isinstance(node, dict | list | tuple) and len(node):
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in pairs:
            _flatten(f"{prefix}/{key}" if prefix else str(key), child, leaves)
    else:
        leaves[prefix] = node
