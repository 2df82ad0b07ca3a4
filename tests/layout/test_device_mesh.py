"""Meshes with devices, compared with those of Keras and jax."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import jax
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from reshard import DeviceMesh, LayoutError, LayoutMap, TensorLayout
from reshard.layout.bridges.jax_sharding import layout_to_sharding

DEVICES = jax.devices()
MESH = DeviceMesh((4, 2), ("data", "model"), DEVICES)


def test_devices_take_the_shape_of_the_mesh() -> None:
    assert MESH.devices is not None
    assert MESH.devices.shape == (4, 2)
    assert list(MESH.devices.flat) == DEVICES
    assert not MESH.devices.flags.writeable
    assert str(MESH) == "the mesh (data=4, model=2)"
    assert DeviceMesh((4, 2), ("data", "model")).devices is None


@pytest.mark.parametrize(
    "devices",
    [
        tuple(DEVICES),
        [DEVICES[:4], DEVICES[4:]],
        np.array(DEVICES).reshape(2, 2, 2),
        [f"cpu:{i}" for i in range(8)],
        np.array([f"cpu:{i}" for i in range(8)]),
    ],
)
def test_any_nesting_and_names_give_the_same_mesh(devices: Any) -> None:
    assert DeviceMesh((4, 2), ("data", "model"), devices) == MESH


def test_devices_are_part_of_the_value() -> None:
    turned = DeviceMesh((4, 2), ("data", "model"), DEVICES[::-1])
    assert turned != MESH
    assert MESH.abstract != MESH
    assert MESH.abstract == turned.abstract == DeviceMesh((4, 2), ("data", "model"))
    assert len({MESH, turned, MESH.abstract, DeviceMesh((4, 2), ("data", "model"), DEVICES)}) == 3
    abstract = MESH.abstract
    assert abstract.abstract is abstract
    assert MESH != "mesh"
    assert replace(MESH, axis_names=("a", "b")).devices is not None


def test_device_ids_are_part_of_the_value_too() -> None:
    ids = (7, 3, 1, 5, 0, 2, 4, 6)
    known = DeviceMesh((4, 2), ("data", "model"), device_ids=ids)
    assert known.device_ids == ids
    assert known.devices is None
    assert known != MESH.abstract != DeviceMesh((4, 2), ("data", "model"), device_ids=ids[::-1])
    assert known == DeviceMesh((4, 2), ("data", "model"), device_ids=np.array(ids).tolist())
    assert known.abstract == MESH.abstract
    assert pickle.loads(pickle.dumps(known)) == known
    assert replace(MESH, devices=DEVICES[::-1]).device_ids == (7, 6, 5, 4, 3, 2, 1, 0)


def test_a_mesh_is_recorded_with_its_device_ids_unless_it_is_all_devices_in_order() -> None:
    assert MESH.device_ids == tuple(range(8))
    assert MESH.recorded == MESH.abstract
    turned = DeviceMesh((4, 2), ("data", "model"), DEVICES[::-1], axis_types=["Auto", "Explicit"])
    assert turned.recorded.devices is None
    assert turned.recorded.device_ids == (7, 6, 5, 4, 3, 2, 1, 0)
    assert turned.recorded.axis_types == ("Auto", "Explicit")
    assert DeviceMesh((2,), ("x",), DEVICES[:2]).recorded.device_ids == (0, 1)
    assert turned.recorded.recorded is turned.recorded
    layout = TensorLayout((None, "data"), turned).recorded
    assert layout == TensorLayout((None, "data"), turned.recorded)
    assert layout.recorded is layout


@pytest.mark.parametrize(
    "ids", [(), (0,), (0, 0), (0, -1), (0, True), (0, 1.0), {0, 1}, 3, (0, 1 << 31)]
)
def test_device_ids_that_make_no_sense(ids: Any) -> None:
    with pytest.raises(
        LayoutError, match=r"^the mesh \(x=2\) needs 2 different device ids, whole numbers"
    ):
        DeviceMesh((2,), ("x",), device_ids=ids)


def test_backend_mesh() -> None:
    assert MESH.backend_mesh == Mesh(np.array(DEVICES).reshape(4, 2), ("data", "model"))
    assert MESH.abstract.backend_mesh == AbstractMesh((4, 2), ("data", "model"))
    explicit = DeviceMesh((8,), ("x",), DEVICES, axis_types=["Explicit"])
    assert explicit.backend_mesh == jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (DEVICES[:6], r"the mesh \(data=4, model=2\) has 8 places, but 6 devices were given; give one each"),
        ([], "but 0 devices were given"),
        ([*DEVICES[:7], DEVICES[0]], r"the mesh \(data=4, model=2\) was given device cpu:0 twice"),
        (range(8), r"was given 0 for a device; expected jax devices, such as those of jax.devices\(\)"),
        (3, "was given 3 for a device"),
        (["cpu:0", "cpu:99"], "was given device 'cpu:99', which this process does not have; it has cpu:0, cpu:1"),
        (["moon:0"], "was given device 'moon:0', which this process does not have; it has cpu:0, cpu:1"),
    ],
)  # fmt: skip
def test_devices_that_make_no_mesh(devices: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        DeviceMesh((4, 2), ("data", "model"), devices)


def test_a_kind_alone_is_its_first_device() -> None:
    mesh = DeviceMesh((1,), ("x",), ["cpu"])
    assert mesh.devices is not None
    assert mesh.devices[0] == DEVICES[0]


def test_copies_are_the_mesh_and_pickles_are_refused() -> None:
    assert copy.copy(MESH) is copy.deepcopy(MESH) is MESH
    assert copy.deepcopy(TensorLayout(("data",), MESH)).device_mesh is MESH
    with pytest.raises(
        LayoutError, match=r"has devices, which belong to this process .* \.abstract"
    ):
        pickle.dumps(MESH)
    assert pickle.loads(pickle.dumps(MESH.abstract)) == MESH.abstract


def test_a_mesh_is_injected_once() -> None:
    layout = TensorLayout(("data", None))
    assert layout.with_mesh(MESH) == TensorLayout(("data", None), MESH)
    assert layout.device_mesh is None
    assert layout.with_mesh(MESH).with_mesh(MESH) == layout.with_mesh(MESH)
    assert layout.with_mesh(MESH.abstract).with_mesh(MESH) == layout.with_mesh(MESH)
    typed = DeviceMesh((4, 2), ("data", "model"), axis_types=["Auto", "Auto"])
    assert layout.with_mesh(typed).with_mesh(MESH).device_mesh == MESH
    with pytest.raises(LayoutError, match="of the axis types Auto, Explicit, not the mesh"):
        layout.with_mesh(replace(typed, axis_types=["Auto", "Explicit"])).with_mesh(MESH)
    other = DeviceMesh((8,), ("data",))
    with pytest.raises(
        LayoutError,
        match=r"cannot override the device mesh value of the layout \[data, null\]: it has the mesh "
        r"\(data=4, model=2\) with devices, not the mesh \(data=8\)",
    ):
        layout.with_mesh(MESH).with_mesh(other)
    with pytest.raises(LayoutError, match="cannot override"):
        layout.with_mesh(MESH).with_mesh(MESH.abstract)
    with pytest.raises(LayoutError, match=r"'data' not in the mesh \(x=8\)"):
        layout.with_mesh(DeviceMesh((8,), ("x",)))


def test_backend_layout() -> None:
    layout = TensorLayout((("data", "model"), None), MESH)
    expected = NamedSharding(MESH.backend_mesh, PartitionSpec(("data", "model"), None))
    assert layout.backend_layout == expected
    assert layout.abstract == TensorLayout((("data", "model"), None), MESH.abstract)
    abstract = layout.abstract
    assert abstract.abstract is abstract
    assert isinstance(abstract.backend_layout.mesh, AbstractMesh)
    with pytest.raises(
        LayoutError, match="a layout without a mesh has no sharding; give it a mesh"
    ):
        _ = TensorLayout(("data",)).backend_layout


@pytest.mark.parametrize("order", [DEVICES, DEVICES[::-1]])
def test_shardings_keep_their_devices(order: list[jax.Device]) -> None:
    mesh = Mesh(np.array(order).reshape(4, 2), ("data", "model"))
    layout = TensorLayout.from_jax(NamedSharding(mesh, PartitionSpec(None, "model")))
    assert layout.device_mesh == DeviceMesh.from_jax(mesh)
    assert layout == TensorLayout.from_jax(PartitionSpec(None, "model"), DeviceMesh.from_jax(mesh))
    assert layout.device_mesh is not None
    assert layout.device_mesh.devices is not None
    assert list(layout.device_mesh.devices.flat) == order
    assert layout.backend_layout == NamedSharding(mesh, PartitionSpec(None, "model"))
    assert layout_to_sharding(layout, order[::-1]).mesh.devices.flat[0] == order[-1]


@pytest.mark.parametrize(
    "mesh", [(4, 2), "x", NamedSharding(Mesh(np.array(DEVICES), ("x",)), PartitionSpec())]
)
def test_a_mesh_of_another_kind_is_refused(mesh: Any) -> None:
    for make in (
        lambda: TensorLayout((None,), mesh),
        lambda: TensorLayout((None,)).with_mesh(mesh),
        lambda: LayoutMap(mesh),
    ):
        with pytest.raises(
            LayoutError,
            match=r"expected a reshard.DeviceMesh or jax.sharding.Mesh, found a \w+: .* make one",
        ):
            make()


SHAPES = st.lists(st.integers(1, 4), max_size=3)
NAMES = st.lists(st.sampled_from("abcd"), max_size=3, unique=True)


@given(SHAPES, NAMES, st.permutations(DEVICES), st.integers(0, 8))
def test_meshes_are_those_of_keras(
    shape: list[int], names: list[str], order: list[jax.Device], count: int
) -> None:
    try:
        theirs = keras.distribution.DeviceMesh(shape, names, order[:count])
    except ValueError:
        with pytest.raises(LayoutError):
            DeviceMesh(shape, names, order[:count])
        return
    ours = DeviceMesh(shape, names, order[:count])
    assert (list(ours.shape), list(ours.axis_names)) == (theirs.shape, theirs.axis_names)
    assert ours.backend_mesh == theirs.backend_mesh


@given(st.lists(st.sampled_from([None, "data", "model", "x"]), max_size=3))
def test_layouts_are_those_of_keras(axes: list[str | None]) -> None:
    used = [name for name in axes if name]
    if len(set(used)) < len(used):  # Keras finds out when the layout is used.
        with pytest.raises(LayoutError, match="used twice"):
            TensorLayout(axes)
        return
    theirs, ours = keras.distribution.TensorLayout(axes), TensorLayout(axes)
    assert ours.axes == theirs.axes
    try:
        theirs.device_mesh = MESH.to_keras()
    except ValueError:
        with pytest.raises(LayoutError, match="invalid axis names"):
            ours.with_mesh(MESH)
        return
    assert ours.with_mesh(MESH).backend_layout == theirs.backend_layout


def test_names_of_axes_equal_a_list_of_keras_and_a_tuple_of_jax() -> None:
    names = MESH.axis_names
    assert names == ["data", "model"]
    assert names == ("data", "model") == MESH.backend_mesh.axis_names
    wanted = ["data", "model"]
    assert wanted == names
    assert (names != wanted) is False
    assert names != ["model", "data"]
    assert names != "data"
    assert hash(names) == hash(("data", "model"))
