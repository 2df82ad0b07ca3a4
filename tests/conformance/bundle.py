"""Reading a checkpoint of TensorFlow without reshard, in the shortest way: all in memory, and no checksum looked at.

``tests/formats/tensorflow`` asks TensorFlow itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4", 31: "int2",
}  # fmt: skip

Fields = dict[int, list[Any]]


def read_bundle(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name, put together of their slices."""
    entries = dict(table(path.with_name(f"{path.name}.index").read_bytes()))
    count = fields(entries[b""])[1][0]
    files = [path.with_name(f"{path.name}.data-{n:05d}-of-{count:05d}") for n in range(count)]
    found = {}
    for key, value in entries.items():
        entry = fields(value)
        if not key or key[0] == 0 or entry[1][0] == 7:
            continue
        name = named(key)
        if 7 not in entry:
            found[name] = array(entry, files)
            continue
        escaped = key.replace(b"\xff", b"\xff\0")  # names in tests have no zero bytes
        keys = sorted(k for k in entries if k.startswith(b"\0" + escaped + b"\0\1"))
        boxes = sorted(map(extents, entry[7]))  # keys of slices sort as slices do
        whole = np.empty(shape(entry), dtype(entry))
        filled = np.zeros(whole.shape, bool)
        for own, box in zip(keys, boxes, strict=True):
            at = tuple(slice(start, start + length) for start, length in box)
            whole[at], filled[at] = array(fields(entries[own]), files), True
        assert filled.all(), name
        found[name] = whole
    return found


def named(key: bytes) -> str:
    name = key.decode().removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
    return name.replace("..", "\0").replace(".S", "/").replace("\0", ".")


def array(entry: Fields, files: list[Path]) -> np.ndarray:
    content = files[entry.get(3, [0])[0]].read_bytes()
    offset, nbytes = entry.get(4, [0])[0], entry.get(5, [0])[0]
    return np.frombuffer(content[offset : offset + nbytes], dtype(entry)).reshape(shape(entry))


def dtype(entry: Fields) -> np.dtype[Any]:
    name = DTYPES[entry[1][0]]
    return np.dtype(getattr(ml_dtypes, name, name))


def shape(entry: Fields) -> tuple[int, ...]:
    dims = fields(entry[2][0]).get(2, []) if 2 in entry else []
    return tuple(fields(dim).get(1, [0])[0] for dim in dims)


def extents(message: bytes) -> list[tuple[int, int]]:
    return [(e.get(1, [0])[0], e[2][0]) for e in map(fields, fields(message)[1])]


def table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of every block."""
    footer = data[-48:]
    at = 0
    for _ in range(2):
        _, at = varint(footer, at)
    for _, handle in block(data, footer[at:]):
        yield from block(data, handle)


def block(data: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    offset, at = varint(handle, 0)
    size, _ = varint(handle, at)
    content = data[offset : offset + size]
    end = size - 4 * (1 + int.from_bytes(content[-4:], "little"))
    key, at = b"", 0
    while at < end:
        shared, at = varint(content, at)
        more, at = varint(content, at)
        length, at = varint(content, at)
        key = key[:shared] + content[at : at + more]
        yield key, content[at + more : at + more + length]
        at += more + length


def fields(message: bytes) -> Fields:
    found: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 0:
            value, at = varint(message, at)
            found[tag >> 3].append(value)
            continue
        length = 4
        if tag & 7 == 2:
            length, at = varint(message, at)
        found[tag >> 3].append(message[at : at + length])
        at += length
    return dict(found)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at
