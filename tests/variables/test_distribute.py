"""distribute_tensor, compared with that of Keras, and its errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from reshard import (
    DeviceMesh,
    LayoutError,
    TensorLayout,
    VariableError,
    VariableTypeError,
    distribute_tensor,
)

DEVICES = jax.devices()
MESH = DeviceMesh((4, 2), ("data", "model"), DEVICES)
EXPLICIT = DeviceMesh((4, 2), ("data", "model"), DEVICES, axis_types=["Explicit"] * 2)
VALUE = np.arange(48, dtype=np.float32).reshape(8, 6)


def layout(*axes: Any, mesh: DeviceMesh | None = MESH) -> TensorLayout:
    return TensorLayout(axes, mesh)


def lies_as(array: jax.Array, expected: TensorLayout) -> bool:
    return array.sharding.is_equivalent_to(expected.backend_layout, array.ndim)


@pytest.mark.parametrize("axes", [("data",), (None, "model"), (("model", "data"), None), ()])
@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_values_stay_and_devices_hold_their_boxes(axes: Any, make: Any) -> None:
    made = distribute_tensor(make(VALUE), layout(*axes))
    assert lies_as(made, layout(*axes))
    assert made.dtype == jnp.float32
    np.testing.assert_array_equal(made, VALUE)
    assert made.sharding.device_set == set(DEVICES)


def test_devices_follow_the_order_of_the_mesh() -> None:
    turned = DeviceMesh((4, 2), ("data", "model"), DEVICES[::-1])
    made = distribute_tensor(VALUE, layout("data", mesh=turned))
    first = next(s for s in made.addressable_shards if s.device == DEVICES[-1])
    np.testing.assert_array_equal(first.data, VALUE[:2])


def test_a_layout_that_is_there_already_gives_the_same_array() -> None:
    made = distribute_tensor(VALUE, layout("data"))
    assert distribute_tensor(made, layout("data", None)) is made
    assert distribute_tensor(made, layout("data").backend_layout) is made
    assert distribute_tensor(made, layout(None, "model")) is not made


def test_a_mesh_without_devices_takes_all_in_their_order() -> None:
    abstract = layout("data", mesh=MESH.abstract)
    made = distribute_tensor(VALUE, abstract)
    assert made.sharding == layout("data").backend_layout
    again = distribute_tensor(VALUE, abstract.backend_layout)  # a NamedSharding of an AbstractMesh
    assert again.sharding == made.sharding


@pytest.mark.parametrize(
    "number", [3, 2.5, True, 1 + 2j, np.float32(4), np.array(7, ml_dtypes.bfloat16)]
)
def test_numbers_and_scalars(number: Any) -> None:
    made = distribute_tensor(number, layout())
    assert made == number
    assert lies_as(made, layout())


def test_keys_variables_and_other_shardings() -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    assert lies_as(distribute_tensor(keys, layout("data")), layout("data"))
    for variable in (keras.Variable(VALUE), nnx.Param(jnp.asarray(VALUE))):
        assert lies_as(distribute_tensor(variable, layout("data")), layout("data"))
    alone = SingleDeviceSharding(DEVICES[3])
    assert distribute_tensor(VALUE, alone).sharding == alone
    host = NamedSharding(MESH.backend_mesh, PartitionSpec("data"), memory_kind="unpinned_host")
    assert distribute_tensor(VALUE, host).sharding.memory_kind == "unpinned_host"


def test_symbolic_tensors_pass_through() -> None:
    symbol = keras.KerasTensor((None, 6))
    assert distribute_tensor(symbol, layout("data")) is symbol


def test_traced_tensors_are_constrained() -> None:
    made = jax.jit(lambda v: distribute_tensor(v * 2, layout(None, "model")))(VALUE)
    assert lies_as(made, layout(None, "model"))
    np.testing.assert_array_equal(made, VALUE * 2)
    uneven = jax.jit(lambda v: distribute_tensor(v, layout(None, "data")) + 1)(VALUE)
    np.testing.assert_array_equal(uneven, VALUE + 1)
    one = SingleDeviceSharding(DEVICES[0])
    assert jax.jit(lambda v: distribute_tensor(v, one))(jnp.asarray(VALUE)).sharding == one
    gradient = jax.grad(lambda v: distribute_tensor(v, layout("data")).sum())(jnp.asarray(VALUE))
    np.testing.assert_array_equal(gradient, np.ones_like(VALUE))


def test_explicit_axes_are_resharded_under_tracing() -> None:
    start = distribute_tensor(VALUE, layout("data", mesh=EXPLICIT))
    goal = layout(None, "model", mesh=EXPLICIT)
    made = jax.jit(lambda v: distribute_tensor(v, goal))(start)
    assert lies_as(made, goal)
    np.testing.assert_array_equal(made, VALUE)


def test_a_traced_mesh_without_devices_takes_those_of_the_context() -> None:
    turned = DeviceMesh((4, 2), ("data", "model"), DEVICES[::-1])
    with jax.set_mesh(turned.backend_mesh):
        goal = layout("data", mesh=turned.abstract)
        made = jax.jit(lambda v: distribute_tensor(v, goal))(VALUE)
    assert made.sharding.mesh == turned.backend_mesh
    outside = jax.jit(lambda v: distribute_tensor(v, layout("data", mesh=MESH.abstract)))(VALUE)
    assert lies_as(outside, layout("data"))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((None, "data"), r"'tensor' of shape \[8, 6\]: dimension 1 of size 6 does not divide into 4 parts \(mesh axis 'data' of size 4\)"),
        ((None, None, "data"), r"'tensor' has 2 dimensions \(shape \[8, 6\]\), but its layout \[null, null, data\] has more axes"),
    ],
)  # fmt: skip
def test_layouts_that_do_not_fit(axes: Any, message: str) -> None:
    for given_as in (layout(*axes), layout(*axes).backend_layout):
        with pytest.raises(LayoutError, match=message):
            distribute_tensor(VALUE, given_as)


def test_a_traced_layout_that_does_not_fit() -> None:
    for mesh in (MESH, EXPLICIT):
        surplus = layout(None, None, "data", mesh=mesh)
        with pytest.raises(
            LayoutError,
            match=r"a traced tensor has 2 dimensions, but its layout P.* more axes than",
        ):
            jax.jit(distribute_tensor, static_argnums=1)(VALUE, surplus)
    start = distribute_tensor(VALUE, layout("data", mesh=EXPLICIT))
    for value, mesh in ((jnp.asarray(VALUE), MESH), (start, EXPLICIT)):
        uneven = layout(None, "data", mesh=mesh)
        with pytest.raises(
            LayoutError,
            match=r"a traced tensor of shape \[8, 6\] cannot be laid out as NamedSharding",
        ):
            jax.grad(lambda v, to=uneven: distribute_tensor(v, to).sum())(value)


def test_shardings_that_say_too_little_are_refused() -> None:
    free = NamedSharding(MESH.backend_mesh, PartitionSpec(PartitionSpec.UNCONSTRAINED))
    with pytest.raises(LayoutError, match="leaves a dimension unconstrained"):
        distribute_tensor(VALUE, free)
    with pytest.raises(
        LayoutError, match=r"the layout \[data\] has no mesh, and so no devices; give it one"
    ):
        distribute_tensor(VALUE, layout("data", mesh=None))
    small = DeviceMesh((4,), ("data",))
    with pytest.raises(LayoutError, match=r"the 8 of jax.devices\(\) do not fill its 4 places"):
        distribute_tensor(VALUE, layout("data", mesh=small))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([1, 2], r"expected an array to distribute, found a list: \[1, 2\]; make it an array, or map over"),
        ({"a": 1}, "found a dict"),
        (None, "found a NoneType"),
        ("abc", "found a str"),
        (np.array(["a"]), r"expected an array that jax can hold, found array\(\['a'\].*numeric types"),
        (np.array([object()]), "expected an array that jax can hold"),
        (np.ma.zeros(3), r"jax can hold, found masked_array[\s\S]*masked arrays are not supported"),
        (1 << 70, "expected an array that jax can hold, found 1180591620717411303424"),
    ],
)  # fmt: skip
def test_what_is_no_array(tensor: Any, message: str) -> None:
    with pytest.raises(VariableTypeError, match=message):
        distribute_tensor(tensor, layout())


@pytest.mark.parametrize(
    "wrong", [("data",), None, "data", MESH.backend_mesh, PartitionSpec("data")]
)
def test_what_is_no_layout(wrong: Any) -> None:
    with pytest.raises(
        VariableTypeError, match=r"expected a reshard.TensorLayout or a jax.sharding.Sharding to"
    ):
        distribute_tensor(VALUE, wrong)


def test_donated_arrays_are_named() -> None:
    array = jnp.asarray(VALUE) + 1
    jax.block_until_ready(jax.jit(lambda v: v + 1, donate_argnums=0)(array))
    with pytest.raises(
        VariableError, match=r"array of shape \[8, 6\] to distribute was deleted, or donated"
    ):
        distribute_tensor(array, layout("data"))


AXES = st.lists(st.sampled_from([None, "data", "model"]), max_size=3).filter(
    lambda axes: all(axes.count(name) < 2 for name in ("data", "model"))
)


@given(
    st.sampled_from([(4, 2), (2, 4), (8, 1)]),
    AXES,
    st.lists(st.integers(0, 8), max_size=3),
    st.booleans(),
)
def test_results_are_those_of_keras(
    mesh_shape: tuple[int, int], axes: list[str | None], shape: list[int], traced: bool
) -> None:
    mesh = DeviceMesh(mesh_shape, ("data", "model"), DEVICES)
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    ours, theirs = TensorLayout(axes, mesh), TensorLayout(axes, mesh).to_keras()

    def run(distribute: Any, goal: Any) -> jax.Array:
        wrapped = (
            jax.jit(lambda v: distribute(v, goal)) if traced else lambda v: distribute(v, goal)
        )
        result: jax.Array = wrapped(value)
        return result

    try:
        expected = run(keras.distribution.distribute_tensor, theirs)
    except ValueError:
        with pytest.raises(LayoutError):
            run(distribute_tensor, ours)
        return
    found = run(distribute_tensor, ours)
    assert found.sharding == expected.sharding
    np.testing.assert_array_equal(found, expected)
