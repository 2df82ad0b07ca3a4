"""Held against jax itself, with eight CPU devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)

from reshard.errors import LayoutError
from reshard.geometry.grid import Box
from reshard.layout.bridges.jax_sharding import (
    layout_from_sharding,
    layout_to_sharding,
    layout_to_spec,
    mesh_from_jax,
    mesh_to_jax,
)
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout, device_boxes

DEVICES = jax.devices()
NAMES = ("a", "b", "c")


@st.composite
def meshes(draw: st.DrawFn, axis_types: tuple[str, ...]) -> DeviceMesh:
    shape = draw(
        st.sampled_from([(8,), (4, 2), (2, 4), (2, 2, 2), (8, 1), (1, 2, 4), (2, 3), (1,)])
    )
    types = draw(st.none() | st.tuples(*[st.sampled_from(axis_types)] * len(shape)))
    return DeviceMesh(shape, NAMES[: len(shape)], axis_types=types)


@st.composite
def layouts(
    draw: st.DrawFn, axis_types: tuple[str, ...] = ("Auto", "Explicit")
) -> tuple[TensorLayout, tuple[int, ...]]:
    # Manual axes are left out where jax is asked for boxes: it knows none for them.
    mesh = draw(meshes(axis_types))
    rank = draw(st.integers(0, 3))
    names = draw(st.permutations(mesh.axis_names))
    owner = [draw(st.integers(-1, rank - 1)) if rank else -1 for _ in names]
    axes = [tuple(n for n, o in zip(names, owner, strict=True) if o == d) for d in range(rank)]
    layout = TensorLayout(axes[: draw(st.integers(0, rank))], mesh)
    return layout, tuple(p * draw(st.integers(0, 3)) for p in layout.parts(rank))


def jax_boxes(sharding: NamedSharding, shape: tuple[int, ...]) -> list[Box]:
    """Per device in the mesh's order, the box that jax says it holds."""
    by_device = sharding.devices_indices_map(shape)
    edges = [
        [s.indices(n)[:2] for s, n in zip(by_device[device], shape, strict=True)]
        for device in sharding.mesh.devices.flat
    ]
    return [Box(tuple(a for a, _ in e), tuple(b for _, b in e)) for e in edges]


def test_there_are_eight_devices() -> None:
    assert len(DEVICES) == 8


@given(layouts(), st.permutations(DEVICES))
def test_devices_hold_the_boxes_that_jax_gives_them(
    case: tuple[TensorLayout, tuple[int, ...]], order: list[jax.Device]
) -> None:
    layout, shape = case
    assert layout.device_mesh is not None
    sharding = layout_to_sharding(layout, order[: layout.device_mesh.size])
    assert device_boxes(layout, shape) == jax_boxes(sharding, shape)
    assert layout.shard_shape(shape) == sharding.shard_shape(shape)


@given(layouts())
def test_indivisible_exactly_where_jax_says_so(case: tuple[TensorLayout, tuple[int, ...]]) -> None:
    layout, even = case
    shape = tuple(n + 1 for n in even)
    abstract = layout_to_sharding(layout)
    try:
        expected = abstract.shard_shape(shape)
    except ValueError:
        with pytest.raises(LayoutError, match="does not divide into"):
            layout.grid(shape, "w")
    else:
        assert layout.grid(shape).largest == expected


@given(layouts(("Auto", "Explicit", "Manual")))
def test_layouts_survive_the_round_trip(case: tuple[TensorLayout, tuple[int, ...]]) -> None:
    layout, _ = case
    mesh = layout.device_mesh
    assert mesh is not None
    back = layout_from_sharding(layout_to_sharding(layout))
    assert back.axes == layout.axes
    assert back.device_mesh == DeviceMesh(
        mesh.shape, mesh.axis_names, axis_types=mesh.axis_types or ["Auto"] * len(mesh.shape)
    )
    assert layout_from_sharding(layout_to_spec(layout), mesh) == layout


def test_axis_types_are_kept() -> None:
    types = (AxisType.Auto, AxisType.Explicit, AxisType.Manual)
    for mesh in (
        Mesh(np.array(DEVICES).reshape(2, 2, 2), NAMES, axis_types=types),
        AbstractMesh((2, 2, 2), NAMES, axis_types=types),
    ):
        ours = mesh_from_jax(mesh)
        abstract = DeviceMesh((2, 2, 2), NAMES, axis_types=("Auto", "Explicit", "Manual"))
        assert ours.abstract == abstract
        assert (ours == abstract) is isinstance(mesh, AbstractMesh)
        assert mesh_to_jax(ours) == mesh == ours.backend_mesh


def test_a_mesh_without_devices_is_abstract() -> None:
    assert isinstance(mesh_to_jax(DeviceMesh((16384,), ("x",))), AbstractMesh)


def test_spec_without_a_mesh() -> None:
    assert layout_from_sharding(PartitionSpec(("a", "b"), None)) == TensorLayout((("a", "b"), None))


def test_devices_must_fill_the_mesh() -> None:
    with pytest.raises(
        LayoutError, match=r"the mesh \(a=4\) has 4 places, but 8 devices were given"
    ):
        mesh_to_jax(DeviceMesh((4,), ("a",)), DEVICES)


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (SingleDeviceSharding(DEVICES[0]), "expected a jax.sharding.NamedSharding or PartitionSpec, found a SingleDeviceSharding"),
        (PartitionSpec(PartitionSpec.UNCONSTRAINED), "leaves a dimension unconstrained, so its shards are unknown"),
        (PartitionSpec("a", unreduced={"b"}), "has unreduced axes, whose devices do not have slices"),
        (PartitionSpec("a", reduced={"b"}), "has reduced axes"),
        (("a", None), "found a tuple"),
    ],
)  # fmt: skip
def test_what_a_layout_cannot_say_is_refused(sharding: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layout_from_sharding(sharding)


def test_unknown_axis_of_a_spec() -> None:
    with pytest.raises(LayoutError, match=r"'z' not in the mesh \(a=8\)"):
        layout_from_sharding(PartitionSpec("z"), DeviceMesh((8,), ("a",)))


def test_meshes_that_are_none() -> None:
    wrong: Any = (4, 2)
    with pytest.raises(
        LayoutError, match=r"expected a jax.sharding.Mesh or AbstractMesh, found a tuple"
    ):
        mesh_from_jax(wrong)
    with pytest.raises(LayoutError, match="shape cannot be empty"):
        mesh_from_jax(AbstractMesh((), ()))
    with pytest.raises(LayoutError, match="a layout without a mesh has no sharding"):
        layout_to_sharding(TensorLayout(("a",)))
