"""Turned copies beside numpy's own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.geometry.turned_copy import turned_copy

SHAPES = [(70, 90), (40, 6, 50), (9, 3, 70, 16), (2, 2000, 3), (1, 300, 1, 33), (33, 2, 2, 200)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "V8", "c16"])
def test_all_orders_of_axes(shape: tuple[int, ...], dtype: str) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    octets = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    source: np.ndarray[Any, Any] = octets.view(dtype).reshape(shape)
    for order in itertools.permutations(range(len(shape))):
        turned = source.transpose(order)
        out = np.empty(turned.shape, dtype)
        turned_copy(out, turned)
        assert out.tobytes() == turned.tobytes()


@given(st.data())
def test_parts_of_both_sides(data: st.DataObject) -> None:
    """The rest of the memory stays as it is."""
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 40)) for _ in range(rank))
    order, other = (data.draw(st.permutations(range(rank))) for _ in range(2))
    where = tuple(slice(data.draw(st.integers(0, n - 1)), None) for n in shape)
    source = np.arange(int(np.prod(shape)), dtype=np.uint32).reshape([shape[d] for d in order])
    source = source.transpose(np.argsort(order))
    memory = np.full([shape[d] for d in other], 7, np.uint32)
    out, plain = memory.transpose(np.argsort(other)), np.full(shape, 7, np.uint32)
    turned_copy(out[where], source[where])
    plain[where] = source[where]
    np.testing.assert_array_equal(out, plain)


def test_scalars_and_empty_arrays() -> None:
    for shape in (), (0,), (3, 0, 2):
        out = np.zeros(shape, np.uint16)
        turned_copy(out, np.ones(shape, np.uint16))
        assert (out == 1).all()
