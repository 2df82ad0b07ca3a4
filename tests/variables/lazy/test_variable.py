"""Variables of plain objects: made at once, or lazy in a scope."""

from __future__ import annotations

from typing import Any

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


def test_values_keep_their_dtype_or_take_the_given_one() -> None:
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
        ((jnp.ones, (2,), "float23"), {}, VariableTypeError, "'float23' is not a dtype"),
        (
            (jnp.ones, (2,), "float64"),
            {},
            VariableTypeError,
            "give float32, or enable jax_enable_x64",
        ),
        ((np.ones(3),), {"key": 3}, VariableTypeError, "takes no key; leave the key out"),
        ((object(),), {}, VariableTypeError, "must be numbers or an initializer, not object"),
        (("abc",), {}, VariableTypeError, "numbers or an initializer, not str: 'abc'"),
        (([[1, 2], [3]],), {}, VariableTypeError, "numbers or an initializer, not list"),
        ((np.array(["a"]),), {}, VariableTypeError, "numbers or an initializer, not ndarray"),
        ((jnp.ones, (2,), object), {}, VariableTypeError, "object is not a dtype of numbers"),
        ((jnp.ones, (10**30,)), {}, VariableTypeError, "may have at most 9223372036854775807"),
        ((jnp.ones, (2,)), {"key": 3}, VariableTypeError, r"such as jax\.random\.key\(0\), not 3"),
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
def test_an_initializer_must_return_the_given_shape_and_dtype(initializer, found) -> None:
    expected = rf"must return shape \[2\] and dtype float32, but returned {found}; correct it"
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


@pytest.mark.parametrize("make", [Variable, lambda *args: materialize([lazy(*args)])[0]])
def test_whole_numbers_never_change(make) -> None:
    assert make(np.array([2**31 - 1])).value.tolist() == [2**31 - 1]
    for value, dtype in (([2**40, 1], None), ([300], "int8"), ([-1], "uint8")):
        with pytest.raises(
            VariableError, match=r"has numbers between .*, which u?int\d+ cannot hold; give"
        ):
            make(np.array(value), None, dtype)


def test_what_an_initializer_raises_names_the_variable() -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    for make in (
        lambda: Variable(broken, (2,), name="a.b"),
        lambda: materialize({"a": {"b": lazy(broken, (2,))}}),
    ):
        with pytest.raises(ZeroDivisionError) as raised:
            make()
        assert "raised by the initializer of the variable 'a.b'" in raised.value.__notes__


def test_an_initializer_that_looks_at_values_cannot_be_lazy() -> None:
    def looks(shape: Any, dtype: Any) -> jax.Array:
        return jnp.full(shape, float(jnp.ones(3).sum()), dtype)

    assert Variable(looks, (2,)).value.tolist() == [3.0, 3.0]
    with pytest.raises(VariableError, match="may compute arrays, but not look at their values"):
        materialize([lazy(looks, (2,))])


@pytest.mark.parametrize("value", [None, "abc", {}, np.array(["a", "b"]), 1 << 70])
def test_assigning_what_is_no_array_changes_nothing(value: Any) -> None:
    variable = Variable([1, 2])
    with pytest.raises(VariableTypeError, match="cannot be assigned a"):
        variable.assign(value)
    assert variable.value.tolist() == [1, 2]


def test_nothing_comes_to_life_while_jax_traces() -> None:
    root = {"w": lazy(jnp.ones, (4,))}
    with pytest.raises(VariableError, match=r"while jax traces a function.*materialize outside"):
        jax.jit(lambda: materialize(root)["w"].value)()
    with pytest.raises(
        VariableError, match="cannot keep a traced value in a layout map's scope: the value would"
    ):
        jax.jit(lambda x: lazy(x) and x)(jnp.ones(2))
    assert materialize(root)["w"].value.tolist() == [1.0] * 4
