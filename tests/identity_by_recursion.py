"""The identity of arrays in memory, made a second time: by recursion on whole arrays, as the definition reads.

It shares no code with ``reshard.identity``; ``docs/reference/identity.md`` is what both follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from blake3 import blake3

Array = Any


def key(kind: str) -> bytes:
    return blake3(b"", derive_key_context="reshard 2026 weights-identity v1 " + kind).digest()


def keyed(kind: str, data: bytes) -> bytes:
    return blake3(data, key=key(kind)).digest()


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def sized(text: str) -> bytes:
    return u64(len(text.encode())) + text.encode()


def order(shape: tuple[int, ...], itemsize: int) -> list[int]:
    """Which dimension each level halves."""
    k = [0] * len(shape)
    found = []
    while True:
        nbytes = itemsize
        for n, halvings in zip(shape, k, strict=True):
            nbytes *= -(-n // 2**halvings)
        if nbytes <= 65536:
            return found
        best = None
        for d in range(len(shape)):
            left = shape[d] // 2 ** k[d]
            fits = left > 1 and (d < len(shape) - 1 or left * itemsize >= 512)
            if fits and (best is None or k[d] < k[best]):
                best = d
        if best is None:
            return found
        k[best] += 1
        found.append(best)


def top(array: Array) -> bytes:
    """The hash of a tree: a part of the array is a leaf, or two halves of it."""
    levels = order(array.shape, array.dtype.itemsize)
    halvings = [levels.count(d) for d in range(array.ndim)]

    def node(level: int, part: tuple[int, ...], cut: tuple[int, ...]) -> bytes:
        """``part``: which part along each dimension of those that were cut ``cut`` times in two."""
        if level == len(levels):
            slices = tuple(
                slice(i * n // 2**k, (i + 1) * n // 2**k)
                for i, k, n in zip(part, halvings, array.shape, strict=True)
            )
            return keyed("leaf", array[slices].tobytes())
        d = levels[level]
        sides = []
        for side in (0, 1):
            i = tuple(2 * p + side if e == d else p for e, p in enumerate(part))
            sides.append(node(level + 1, i, tuple(c + (e == d) for e, c in enumerate(cut))))
        return keyed("node", sides[0] + sides[1])

    return node(0, (0,) * array.ndim, (0,) * array.ndim)


def proof(array: Array, start: tuple[int, ...], stop: tuple[int, ...]) -> bytes | None:
    """The hashes of the largest parts outside of a slice, from the left; None for a slice that cuts a leaf."""
    levels = order(array.shape, array.dtype.itemsize)

    def node(level: int, part: tuple[int, ...]) -> tuple[bytes, bytes | None]:
        """The hash of a part, and the proof within it."""
        cut = [levels[:level].count(d) for d in range(array.ndim)]
        ends = [
            (p * n // 2**k, (p + 1) * n // 2**k)
            for p, k, n in zip(part, cut, array.shape, strict=True)
        ]
        inside = all(a <= b and c <= e for a, (b, c), e in zip(start, ends, stop, strict=True))
        outside = any(c <= a or b >= e for a, (b, c), e in zip(start, ends, stop, strict=True))
        if level == len(levels):
            data = array[tuple(slice(b, c) for b, c in ends)].tobytes()
            own, below = keyed("leaf", data), None
        else:
            d = levels[level]
            sides = [
                node(level + 1, tuple(2 * p + side if e == d else p for e, p in enumerate(part)))
                for side in (0, 1)
            ]
            own = keyed("node", sides[0][0] + sides[1][0])
            below = (
                None if None in (sides[0][1], sides[1][1]) else b"".join(s[1] or b"" for s in sides)
            )
        return own, b"" if inside else own if outside else below

    return node(0, (0,) * array.ndim)[1]


def entry(array: Array, dtype: str) -> bytes:
    shape = b"".join(map(u64, array.shape))
    return sized(dtype) + u64(array.ndim) + shape + top(array)


def roots(arrays: Mapping[str, Array]) -> tuple[str, str]:
    """The root and the contents."""
    entries = {name: entry(np.asarray(a), np.asarray(a).dtype.name) for name, a in arrays.items()}
    tensors = [keyed("tensor", sized(n) + entries[n]) for n in sorted(entries, key=str.encode)]
    root = keyed("root", u64(len(tensors)) + b"".join(tensors))
    different = sorted(set(entries.values()))
    contents = keyed("contents", u64(len(different)) + b"".join(different))
    return root.hex(), contents.hex()
