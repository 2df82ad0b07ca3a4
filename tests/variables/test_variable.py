"""Variables of plain objects: made at once, or lazy in a scope."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reshard import VariableError, VariableTypeError
from reshard.variables import Variable, materialize
from tests.variables.models import layouts


def lazy(*args: object, **options: object) -> Variable:
    with layouts(w=("model",)).scope():
        return Variable(*args, **options)


def test_outside_a_scope_it_is_made_at_once() -> None:
    variable = Variable(jnp.ones, (2, 3))
    assert not variable.is_lazy
    assert variable.layout_map is None
    assert (variable.shape, variable.dtype, variable.ndim) == ((2, 3), jnp.float32, 2)
    assert variable.value.devices() == {jax.devices()[0]}
    assert np.array_equal(variable, np.ones((2, 3)))


def test_an_initializer_with_a_key_is_called_as_those_of_jax() -> None:
    made = Variable(jax.nn.initializers.lecun_normal(), (4, 4), jnp.bfloat16, key=jax.random.key(1))
    there = jax.nn.initializers.lecun_normal()(jax.random.key(1), (4, 4), jnp.bfloat16)
    assert made.dtype == jnp.bfloat16
    assert np.array_equal(made.value, there)


def test_in_a_scope_only_shape_and_dtype_are_known() -> None:
    variable = lazy(jnp.ones, [2, 3], "int8", name="w")
    assert variable.is_lazy
    assert (variable.shape, variable.dtype, variable.ndim) == ((2, 3), np.int8, 2)
    assert repr(variable) == "Variable 'w' (shape [2, 3], int8, lazy)"


def test_an_initializer_is_not_run_in_a_scope() -> None:
    def never(*_: object) -> None:
        raise AssertionError("the initializer was run")

    assert lazy(never, (2,)).is_lazy


@pytest.mark.parametrize(
    "read",
    [
        lambda v: v.value, lambda v: v.sharding, np.asarray, jnp.asarray, lambda v: v.assign(3),
    ],
)  # fmt: skip
def test_reading_a_lazy_variable_says_what_to_do(read) -> None:
    with pytest.raises(
        VariableError,
        match=r"Variable 'w' \(shape \[2\], float32, lazy\) was made in a layout map's scope and has no "
        r"value yet; call reshard\.variables\.materialize\(root\)",
    ):
        read(lazy(jnp.ones, (2,), name="w"))


def test_assigning_keeps_dtype_and_sharding() -> None:
    variable = materialize({"w": lazy(jnp.ones, (8,))})["w"]
    before = variable.sharding
    variable.assign(np.arange(8))
    assert variable.sharding == before
    assert variable.dtype == jnp.float32
    assert np.array_equal(variable.value, np.arange(8))


def test_assigning_another_shape_changes_nothing() -> None:
    variable = Variable(jnp.ones, (4,))
    with pytest.raises(VariableError, match=r"cannot be assigned a value of shape \[5\]"):
        variable.assign(np.arange(5))
    assert np.array_equal(variable.value, np.ones(4))


def test_assigning_under_tracing_is_refused() -> None:
    variable = Variable(jnp.ones, (4,))
    with pytest.raises(VariableError, match=r"cannot be assigned a traced value.*return the value"):
        jax.jit(variable.assign)(jnp.ones(4))
    assert np.array_equal(variable.value, np.ones(4))


def test_it_takes_part_in_computations() -> None:
    variable = materialize({"w": lazy(jnp.ones, (8, 2))})["w"]
    assert jnp.sum(jnp.ones((3, 8)) @ variable.value) == 48
    assert jnp.sum(jnp.asarray(variable)) == 16


def test_values_keep_their_dtype_or_take_the_one_that_is_asked() -> None:
    assert Variable(np.arange(3, dtype=np.int16)).dtype == np.int16
    assert Variable(np.arange(3.0)).dtype == np.float32  # as jax makes of float64
    assert Variable([1, 2], dtype="bfloat16").dtype == jnp.bfloat16
    assert lazy(np.arange(3.0)).dtype == np.float32
    assert Variable(2.5).shape == ()


@pytest.mark.parametrize("where", [Variable, lazy])
@pytest.mark.parametrize(
    ("args", "options", "kind", "message"),
    [
        ((jnp.ones,), {}, VariableTypeError, "needs its shape too, such as"),
        ((jnp.ones, (2, -1)), {}, VariableTypeError, r"whole numbers of at least 0, not \(2, -1\)"),
        ((jnp.ones, (2.5,)), {}, VariableTypeError, r"whole numbers of at least 0, not \(2\.5,\)"),
        ((jnp.ones, None, None), {}, VariableTypeError, "needs its shape too"),
        ((jnp.ones, (2,), "float23"), {}, VariableTypeError, "'float23' is no dtype"),
        (
            (jnp.ones, (2,), "float64"),
            {},
            VariableTypeError,
            "ask for float32, or enable jax_enable_x64",
        ),
        ((np.ones(3),), {"key": 3}, VariableTypeError, "takes no key; give an initializer"),
        ((object(),), {}, VariableTypeError, "must be numbers or an initializer, not object"),
        ((np.ones(3), (4,)), {}, VariableError, r"shape \[4\] was given a value of shape \[3\]"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(where, args, options, kind, message) -> None:
    with pytest.raises(kind, match=message):
        where(*args, **options)


@pytest.mark.parametrize(
    ("initializer", "found"),
    [
        (lambda _, d: jnp.ones((3,), d), r"shape \[3\] and dtype float32"),
        (lambda s, _: jnp.ones(s, "int32"), r"shape \[2\] and dtype int32"),
    ],
)
def test_an_initializer_must_make_what_was_asked(initializer, found) -> None:
    expected = rf"was to make shape \[2\] and dtype float32, but made {found}; correct it"
    with pytest.raises(VariableError, match=f"initializer of 'w' {expected}"):
        Variable(initializer, (2,), name="w")
    with pytest.raises(VariableError, match=f"initializer of 'a.b' {expected}"):
        materialize({"a": {"b": lazy(initializer, (2,))}})


def test_random_keys_and_numbers_stay_what_they_are() -> None:
    variable = Variable(jax.random.key(0))
    variable.assign(jax.random.key(5))
    assert jax.random.key_data(variable.value).tolist() == [0, 5]
    with pytest.raises(
        VariableTypeError, match="an array of dtype int32 cannot become one of key<fry>"
    ):
        variable.assign(3)
    with pytest.raises(
        VariableTypeError, match="an array of dtype key<fry> cannot become one of int8"
    ):
        Variable(jax.random.key(0), dtype="int8")
