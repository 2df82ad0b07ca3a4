"""A layout's mesh is set once; nothing else of it changes."""

from __future__ import annotations

import pytest

from reshard import DeviceMesh, LayoutError, TensorLayout

MESH = DeviceMesh((2, 4), ("data", "model"))


def test_a_layout_without_a_mesh_takes_one_once() -> None:
    layout = TensorLayout((None, "model"))
    known = {layout: "found"}
    layout.device_mesh = MESH
    assert layout == TensorLayout((None, "model"), MESH)
    assert layout.shard_shape((8, 8)) == (8, 2)
    assert known[layout] == "found"
    layout.device_mesh = MESH
    with pytest.raises(LayoutError, match="cannot override the device mesh value of the layout"):
        layout.device_mesh = DeviceMesh((8,), ("model",))
    assert layout.device_mesh == MESH


def test_a_mesh_that_lacks_an_axis_is_refused() -> None:
    layout = TensorLayout(("expert",))
    with pytest.raises(
        LayoutError, match=r"invalid axis names for layout \[expert\]: 'expert' not in"
    ):
        layout.device_mesh = MESH
    assert layout.device_mesh is None


def test_axes_never_change() -> None:
    layout = TensorLayout(("data",), MESH)
    with pytest.raises(AttributeError, match="cannot assign to field 'axes' of a layout"):
        layout.axes = ("model",)
    with pytest.raises(AttributeError, match="cannot delete field 'device_mesh' of a layout"):
        del layout.device_mesh
    assert layout == TensorLayout(("data",), MESH)
