"""Operators answer like those of jax or numpy on the whole array."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reshard import ShardedVariable

WHOLE = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]


HOLDERS = pytest.mark.parametrize("holder", [jnp.asarray, np.asarray], ids=["jax", "numpy"])


def check(found: Any, expected: Any, holder: Any = jnp.asarray) -> None:
    assert isinstance(found, jax.Array if holder is jnp.asarray else np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@HOLDERS
@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_of_two(name: str, strategy: str, holder: Any) -> None:
    variable = ShardedVariable.split(holder(WHOLE), 2, partition_strategy=strategy)
    other = ShardedVariable.split(WHOLE, 3, devices=jax.devices()[2:4])
    do = getattr(operator, name)
    check(do(variable, 2), do(WHOLE, 2), holder)
    check(do(2, variable), do(2, WHOLE), holder)
    check(do(variable, WHOLE[0]), do(WHOLE, WHOLE[0]), holder)
    check(do(WHOLE[0], variable), do(WHOLE[0], WHOLE), holder)
    check(do(variable, variable), do(WHOLE, WHOLE), holder)
    check(do(jnp.asarray(WHOLE), variable), do(WHOLE, WHOLE))
    check(do(variable, other), do(WHOLE, WHOLE))


@HOLDERS
@pytest.mark.parametrize("name", BITS)
def test_of_bits(name: str, holder: Any) -> None:
    whole = np.array([1, 2, 5], np.int32)
    variable, do = ShardedVariable.split(holder(whole), 2), getattr(operator, name)
    check(do(variable, 3), do(whole, 3), holder)
    check(do(3, variable), do(3, whole), holder)


@HOLDERS
def test_of_one_and_matrices(holder: Any) -> None:
    variable = ShardedVariable.split(holder(WHOLE), 2)
    check(-variable, -WHOLE, holder)
    check(+variable, WHOLE, holder)
    check(abs(-variable), WHOLE, holder)
    check(variable @ WHOLE.T, WHOLE @ WHOLE.T, holder)
    check(WHOLE.T @ variable, WHOLE.T @ WHOLE, holder)
    check(~ShardedVariable.split(holder(np.array([True, False])), 2), [False, True], holder)


def test_functions_of_jax_and_numpy() -> None:
    variable = ShardedVariable.split(WHOLE, 2)
    check(jnp.sum(variable, axis=0), WHOLE.sum(0))
    np.testing.assert_array_equal(np.sqrt(variable), np.sqrt(WHOLE))
    np.testing.assert_array_equal(np.add(variable, variable), WHOLE * 2)
    check(jax.jit(lambda v: v * 2 + 1)(variable), WHOLE * 2 + 1)


def test_a_variable_is_not_hashed_by_its_name_or_place() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(ShardedVariable([WHOLE]))
