"""Operators answer as jax's do for the array that the variable is."""

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


def check(found: Any, expected: Any) -> None:
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_of_two(name: str, strategy: str) -> None:
    variable = ShardedVariable.split(WHOLE, 2, partition_strategy=strategy)
    other = ShardedVariable.split(WHOLE, 3, devices=jax.devices()[2:4])
    do = getattr(operator, name)
    check(do(variable, 2), do(WHOLE, 2))
    check(do(2, variable), do(2, WHOLE))
    check(do(variable, WHOLE[0]), do(WHOLE, WHOLE[0]))
    check(do(WHOLE[0], variable), do(WHOLE[0], WHOLE))
    check(do(jnp.asarray(WHOLE), variable), do(WHOLE, WHOLE))
    check(do(variable, other), do(WHOLE, WHOLE))


@pytest.mark.parametrize("name", BITS)
def test_of_bits(name: str) -> None:
    whole = np.array([1, 2, 5], np.int32)
    variable, do = ShardedVariable.split(whole, 2), getattr(operator, name)
    check(do(variable, 3), do(whole, 3))
    check(do(3, variable), do(3, whole))


def test_of_one_and_matrices() -> None:
    variable = ShardedVariable.split(WHOLE, 2)
    check(-variable, -WHOLE)
    check(+variable, WHOLE)
    check(abs(-variable), WHOLE)
    check(variable @ WHOLE.T, WHOLE @ WHOLE.T)
    check(WHOLE.T @ variable, WHOLE.T @ WHOLE)
    check(~ShardedVariable.split(np.array([True, False]), 2), [False, True])


def test_functions_of_jax_and_numpy() -> None:
    variable = ShardedVariable.split(WHOLE, 2)
    check(jnp.sum(variable, axis=0), WHOLE.sum(0))
    np.testing.assert_array_equal(np.sqrt(variable), np.sqrt(WHOLE))
    np.testing.assert_array_equal(np.add(variable, variable), WHOLE * 2)
    check(jax.jit(lambda v: v * 2 + 1)(variable), WHOLE * 2 + 1)


def test_a_variable_is_not_hashed_by_its_name_or_place() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(ShardedVariable([WHOLE]))
