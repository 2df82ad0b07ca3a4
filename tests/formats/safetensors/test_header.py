"""Headers of safetensors files, against the reference library: what it writes is read, what it refuses is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from reshard.errors import CorruptError, FormatError, ReshardError
from reshard.formats.safetensors.header import is_safetensors, read_header, tensor_count
from reshard.storage.location import locate
from tests.formats.safetensors.build import entry, file_of, packed

NUMPY = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64")


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    tensors = {
        dtype: np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype, dtype))
        for dtype in (*NUMPY, *FLOATS)
    }
    path = tmp_path / "all.safetensors"
    path.write_bytes(
        save({**tensors, "scalar": np.array(1.5), "empty": np.zeros((0, 4))}, {"a": "b"})
    )
    header = read_header(locate(path))
    assert header.metadata == {"a": "b"}
    data = path.read_bytes()
    for piece in header.pieces:
        if piece.name in tensors:
            assert (piece.dtype, piece.shape) == (piece.name, (2, 3))
            stored = data[piece.offset : piece.offset + piece.nbytes]
            assert stored == tensors[piece.name].tobytes()
    shapes = {piece.name: piece.shape for piece in header.pieces}
    assert (shapes["scalar"], shapes["empty"]) == ((), (0, 4))
    assert tensor_count(locate(path)) == len(tensors) + 2


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("F8_E5M2", "float8_e5m2"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E8M0", "float8_e8m0fnu"),
        ("F8_E4M3FNUZ", "float8_e4m3fnuz"),
        ("F8_E5M2FNUZ", "float8_e5m2fnuz"),
    ],
)
def test_floats_of_a_byte_are_read(tmp_path: Path, name: str, dtype: str) -> None:
    path = file_of(tmp_path, packed({"w": entry(name, [3], 0, 3)}, b"abc"))
    (piece,) = read_header(locate(path)).pieces
    assert (piece.dtype, piece.nbytes) == (dtype, 3)


ONE = {"w": entry("U8", [4], 0, 4)}

REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 bytes, fewer than the 8 of the header's length"),
    "short length": (b"\1\0", "has 2 bytes, fewer than the 8"),
    "long header": (
        (100_000_001).to_bytes(8, "little") + b"{}",
        "says that its header has 100,000,001 bytes; the format allows 100,000,000",
    ),
    "huge header": (b"\xff" * 8 + b"{}", "bytes; the format allows 100,000,000"),
    "cut header": (packed(ONE, b"abcd")[:20], "but ends after 20"),
    "not JSON": (packed(b"{'w'}", b""), "expected JSON, found:"),
    "not UTF-8": (packed(b'{"\xff": 1}', b""), "bytes that are not UTF-8"),
    "a NUL": (packed(b'{"a\0": 1}', b""), "a NUL byte"),
    "a list": (packed(b"[]", b""), "it should be of type dict"),
    "a number of many digits": (packed(b'{"w": 1' + b"0" * 5000 + b"}", b""), "expected JSON"),
    "deep": (packed(b'{"w": ' + b"[" * 1000 + b"]" * 1000 + b"}", b""), "nests 1001 levels deep"),
    "no dtype": (packed({"w": {"shape": [4], "data_offsets": [0, 4]}}, b"abcd"), "has no 'dtype'"),
    "no shape": (packed({"w": {"dtype": "U8", "data_offsets": [0, 4]}}, b"abcd"), "has no 'shape'"),
    "no offsets": (packed({"w": {"dtype": "U8", "shape": [4]}}, b"abcd"), "has no 'data_offsets'"),
    "an entry that is a list": (packed({"w": [1]}, b""), "its entry should be of type dict"),
    "unknown dtype": (
        packed({"w": entry("F7", [4], 0, 4)}, b"abcd"),
        "has the dtype 'F7'; expected",
    ),
    "dtype that is a number": (
        packed({"w": entry(7, [4], 0, 4)}, b"abcd"),
        "its dtype should be of",
    ),
    "negative size": (packed({"w": entry("U8", [-4], 0, 4)}, b"abcd"), "numbers from 0 to 2^62"),
    "a size that is a float": (packed({"w": entry("U8", [4.0], 0, 4)}, b"abcd"), "of type int"),
    "a size that is true": (packed({"w": entry("U8", [True], 0, 1)}, b"a"), "of type int"),
    "absurd size": (packed({"w": entry("U8", [1 << 63], 0, 4)}, b"abcd"), "numbers from 0 to 2^62"),
    "absurd shape": (
        packed({"w": entry("F32", [1 << 40, 1 << 40], 0, 4)}, b"abcd"),
        "but its data_offsets [0, 4] hold 4",
    ),
    "many dimensions": (
        packed({"w": entry("U8", [1] * 33, 0, 1)}, b"a"),
        "33 dimensions; at most 32",
    ),
    "three offsets": (
        packed({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]}}, b"abcd"),
        "should be a begin and an end, but are [0, 4, 4]",
    ),
    "offsets turned round": (packed({"w": entry("U8", [0], 4, 0)}, b"abcd"), "a begin and an end"),
    "wrong size": (
        packed({"w": entry("U8", [3], 0, 4)}, b"abcd"),
        "takes 3 bytes, but its data_offsets",
    ),
    "a hole at the start": (
        packed({"w": entry("U8", [4], 1, 5)}, b"abcde"),
        "leaves a hole before",
    ),
    "a hole": (
        packed({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"abc"),
        "leaves a hole before tensor 'b': it begins at byte 2 of the data, expected 1",
    ),
    "an overlap": (
        packed({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"abc"),
        "overlaps the bytes of tensor 'b': it begins at byte 1 of the data, expected 2",
    ),
    "cut data": (packed(ONE, b"abc"), "its tensors need"),
    "trailing bytes": (packed(ONE, b"abcde"), "has 1 bytes behind its last tensor"),
    "metadata that is no text": (
        packed({"__metadata__": {"a": 1}, **ONE}, b"abcd"),
        "__metadata__['a'] should be of type str, but is 1",
    ),
    "metadata that is a list": (
        packed({"__metadata__": [], **ONE}, b"abcd"),
        "__metadata__ should be",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_does_not_add_up_is_refused(tmp_path: Path, what: str) -> None:
    data, expected = REFUSED[what]
    path = file_of(tmp_path, data)
    with pytest.raises(ReshardError) as error:
        read_header(locate(path))
    assert expected in str(error.value)
    assert path in str(error.value)


TAKEN_BY_THE_LIBRARY = ("many dimensions",)
"""What the reference library reads and this project does not."""


@pytest.mark.parametrize("what", [w for w in REFUSED if w not in TAKEN_BY_THE_LIBRARY])
def test_the_library_refuses_it_too(tmp_path: Path, what: str) -> None:
    path = file_of(tmp_path, REFUSED[what][0])
    with pytest.raises((SafetensorError, OSError)), safe_open(path, "numpy") as file:
        file.keys()


def test_a_name_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry("U8", [2], 0, 2))
    other = json.dumps(entry("U8", [2], 2, 4))
    path = file_of(tmp_path, packed(f'{{"w": {one}, "w": {other}}}'.encode(), b"abcd"))
    with pytest.raises(CorruptError) as error:
        read_header(locate(path))
    assert str(error.value) == (
        f"the header of {path} has the name 'w' twice; readers differ in which one they take, so write the file anew "
        "with one of them"
    )


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    import os

    path = tmp_path / "pipe.safetensors"
    os.mkfifo(path)
    assert not is_safetensors(locate(path))
    with pytest.raises(FormatError, match="is no plain file"):
        read_header(locate(path))


ACCEPTED: dict[str, bytes] = {
    "no padding": packed(ONE, b"abcd", align=1),
    "misaligned tensors": packed(
        {"a": entry("U8", [1], 0, 1), "b": entry("F32", [1], 1, 5)}, b"abcde"
    ),
    "null metadata": packed({"__metadata__": None, **ONE}, b"abcd"),
    "more members": packed({"w": {**entry("U8", [4], 0, 4), "more": 1}}, b"abcd"),
    "no tensors": packed({}, b""),
    "a space before": packed(b" " + json.dumps(ONE).encode(), b"abcd"),
    "empty tensors side by side": packed(
        {"a": entry("F32", [0], 0, 0), "b": entry("U8", [4], 0, 4), "c": entry("U8", [0, 2], 4, 4)},
        b"abcd",
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_the_library_takes_is_taken(tmp_path: Path, what: str) -> None:
    path = file_of(tmp_path, ACCEPTED[what])
    with safe_open(path, "numpy") as file:
        names = set(file.keys())
    assert {piece.name for piece in read_header(locate(path)).pieces} == names
    assert is_safetensors(locate(path))


def _flipped(data: bytes, bit: int) -> bytes:
    made = bytearray(data)
    made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


def _cut(data: bytes, size: int) -> bytes:
    return data[:size]


@given(
    change=st.sampled_from([_flipped, _cut]),
    place=st.integers(0, 8 * 200 - 1),
    names=st.lists(st.text(min_size=1, max_size=8), max_size=4, unique=True),
)
def test_a_damaged_header_never_reads_beyond_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    change: Callable[[bytes, int], bytes],
    place: int,
    names: list[str],
) -> None:
    entries: dict[str, Any] = {n: entry("U8", [2], 2 * i, 2 * i + 2) for i, n in enumerate(names)}
    data = packed(entries, bytes(2 * len(names)))
    path = file_of(tmp_path_factory.mktemp("one"), change(data, place % (8 * len(data))))
    try:
        header = read_header(locate(path))
    except ReshardError:
        return
    size = Path(path).stat().st_size
    assert all(piece.offset + piece.nbytes <= size for piece in header.pieces)
