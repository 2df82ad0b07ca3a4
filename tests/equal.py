"""Comparing trees bit by bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def assert_same_trees(found: Any, expected: Any) -> None:
    """The same structure, and in each leaf the same bits in the same dtype."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, leaf), other in zip(
        jax.tree_util.tree_flatten_with_path(found)[0], jax.tree.leaves(expected), strict=True
    ):
        assert_same(leaf, other, jax.tree_util.keystr(path))


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """The same bits in the same dtype and shape, or equal Python values of one type."""
    if isinstance(expected, bool | int | float | complex | str):
        assert (type(found), found) == (type(expected), expected), where
        return
    a, b = bits(found), bits(expected)
    assert (a.dtype, a.shape) == (b.dtype, b.shape), where
    np.testing.assert_array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8), where)


def bits(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.ascontiguousarray(leaf)
