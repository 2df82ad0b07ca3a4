from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError
from reshard.geometry.grid import Box
from reshard.layout.device_mesh import MAX_DEVICES, DeviceMesh, parse_mesh
from reshard.layout.tensor_layout import TensorLayout, device_boxes

MESH = DeviceMesh((4, 2), ("data", "model"))


def test_lists_become_tuples_and_values_compare() -> None:
    mesh: Any = DeviceMesh([np.int64(4), 2], ["data", "model"])
    assert mesh == MESH
    assert hash(mesh) == hash(MESH)
    assert (mesh.shape, mesh.axis_names, mesh.size) == ((4, 2), ("data", "model"), 8)
    assert type(mesh.shape[0]) is int
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert str(mesh) == "the mesh (data=4, model=2)"


def test_axis_types_are_part_of_the_value() -> None:
    mesh = DeviceMesh((4, 2), ("data", "model"), axis_types=["AxisType.Auto", "explicit"])
    assert mesh.axis_types == ("Auto", "Explicit")
    assert mesh != MESH
    assert replace(mesh, shape=(2, 4)).axis_types == ("Auto", "Explicit")


@pytest.mark.parametrize(
    ("shape", "names", "message"),
    [
        ((), (), "shape cannot be empty"),
        ((4,), (), "axis names cannot be empty"),
        ((4, 2), ("data",), r"should have same size, but shape \[4, 2\] has 2 and names \['data'\] have 1"),
        ((4, 0), ("a", "b"), r"at least 1, but the shape is \[4, 0\]"),
        ((4, -1), ("a", "b"), "at least 1"),
        ((2, 2), ("a", "a"), r"must differ, but are \['a', 'a'\]"),
        ((2,), "a", "sequence of non-empty strings, not 'a'"),
        ((2,), ("",), "sequence of non-empty strings"),
        ((2,), (1,), r"sequence of non-empty strings, not \(1,\)"),
        ((2.5,), ("a",), r"whole numbers, one per axis, not \(2.5,\)"),
        (8, ("a",), "whole numbers, one per axis, not 8"),
        ({2, 4}, ("a", "b"), r"whole numbers, one per axis, not \{2, 4\}"),
        ((2, 4), {"a": 1, "b": 2}, r"sequence of non-empty strings, not \{'a': 1, 'b': 2\}"),
        ((2, 4), {"a"}, r"sequence of non-empty strings, not \{'a'\}"),
        ((2,), None, "sequence of non-empty strings, not None"),
        ((2,), 5, "sequence of non-empty strings, not 5"),
        ((1 << 62,), ("a",), f"at most 64 axes and {MAX_DEVICES} devices"),
        ((1,) * 65, tuple(map(str, range(65))), "at most 64 axes"),
    ],
)  # fmt: skip
def test_meshes_that_make_no_sense(shape: Any, names: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        DeviceMesh(shape, names)


@pytest.mark.parametrize("types", [("Auto",), ("Auto", "Odd"), "Auto", (1, 2), 5])
def test_axis_types_that_make_no_sense(types: Any) -> None:
    with pytest.raises(LayoutError, match="one of Auto, Explicit, Manual for each of its 2 axes"):
        DeviceMesh((4, 2), ("data", "model"), axis_types=types)


def test_anything_in_order_names_axes() -> None:
    numbers: Any = np.array([4, 2])
    names: Any = np.array(["data", "model"])
    assert DeviceMesh(numbers, names) == MESH == DeviceMesh(iter(numbers), iter(names))


def test_unknown_axis_lists_the_known() -> None:
    with pytest.raises(LayoutError, match=r"'x' is not in the mesh \(data=4, model=2\)"):
        MESH.axis_size("x")


def test_layout_axes_are_normalised() -> None:
    axes: Any = [["data", "model"], None, ["data"][:0], []]
    layout = TensorLayout(axes, MESH)
    assert layout.axes == (("data", "model"), None, None, None)
    assert TensorLayout((("model",), None)) == TensorLayout(("model", None))
    assert hash(layout) == hash(TensorLayout(layout.axes, MESH))
    assert pickle.loads(pickle.dumps(layout)) == layout


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("model", r"one entry per dimension, not the string 'model'; write \('model',\)"),
        (3, "one entry per dimension, not 3"),
        (None, "one entry per dimension, not None"),
        ({"data"}, r"one entry per dimension, not \{'data'\}"),
        ({"data": 0}, r"one entry per dimension, not \{'data': 0\}"),
        ((1,), "None, the name of a mesh axis or several names, not 1"),
        (((None,),), r"or several names, not \(None,\)"),
        (("data", "data"), r"'data' is used twice in the layout \[data, data\]"),
        ((("data", "model"), "model"), r"'model' is used twice in the layout \[\[data, model\], model\]"),
        ((None, "x"), r"invalid axis names for layout \[null, x\]: 'x' not in the mesh \(data=4, model=2\)"),
    ],
)  # fmt: skip
def test_layouts_that_make_no_sense(axes: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        TensorLayout(axes, MESH)


def test_axis_used_twice_is_refused_before_a_mesh_is_known() -> None:
    with pytest.raises(LayoutError, match="used twice"):
        TensorLayout(("x", "x"))
    assert TensorLayout(("x", None)).axes == ("x", None)


def test_parts_and_grid() -> None:
    layout = TensorLayout((("data", "model"), None), MESH)
    assert layout.parts(3) == (8, 1, 1)
    assert layout.shard_shape((16, 3, 5)) == (2, 3, 5)
    assert layout.grid((16, 3)).parts == (8, 1)
    assert layout.grid((0, 3)).count == 0


def test_indivisible_dimension_says_everything() -> None:
    with pytest.raises(
        LayoutError,
        match=r"'emb' of shape \[12, 3\]: dimension 0 of size 12 does not divide into 8 parts "
        r"\(mesh axis 'data' of size 4 × 'model' of size 2\); leave that dimension unsplit \(null\) "
        r"or split it by axes whose sizes multiply to a divisor of 12",
    ):
        TensorLayout((("data", "model"), None), MESH).grid((12, 3), "emb")


def test_more_axes_than_dimensions() -> None:
    layout = TensorLayout((None, "model"), MESH)
    with pytest.raises(
        LayoutError,
        match=r"'b' has 1 dimensions \(shape \[4\]\), but its layout \[null, model\] has more axes "
        r"than dimensions: 2; remove the surplus ones",
    ):
        layout.grid((4,), "b")
    with pytest.raises(LayoutError, match="'b' has 0 dimensions, but its layout"):
        layout.parts(0, "b")


def test_no_mesh_no_shards() -> None:
    with pytest.raises(
        LayoutError, match=r"\[null, x\] of 'w' has no mesh, so its shards are unknown"
    ):
        TensorLayout((None, "x")).grid((4, 4), "w")
    with pytest.raises(LayoutError, match="has no mesh"):
        device_boxes(TensorLayout((None, "x")), (4, 4), "w")


@st.composite
def layouts(draw: st.DrawFn) -> tuple[TensorLayout, tuple[int, ...]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    mesh = DeviceMesh(sizes, [f"a{i}" for i in range(len(sizes))])
    names = draw(st.permutations(mesh.axis_names))
    rank = draw(st.integers(0, 3))
    owner = [draw(st.integers(-1, rank - 1)) if rank else -1 for _ in names]
    axes = [tuple(n for n, o in zip(names, owner, strict=True) if o == d) for d in range(rank)]
    layout = TensorLayout(axes, mesh)
    shape = tuple(p * draw(st.integers(0, 3)) for p in layout.parts(rank))
    return layout, shape


@given(layouts())
def test_device_boxes_are_the_grid_repeated_for_replicas(
    case: tuple[TensorLayout, tuple[int, ...]],
) -> None:
    layout, shape = case
    boxes = device_boxes(layout, shape)
    assert layout.device_mesh is not None
    assert len(boxes) == layout.device_mesh.size
    filled = {box for box in boxes if box.size}
    assert filled == set(layout.grid(shape).boxes())
    assert all(boxes.count(box) * len(filled) == len(boxes) for box in filled)


def test_device_order_follows_mesh_then_axes() -> None:
    layout = TensorLayout((None, ("model", "data")), MESH)
    boxes = device_boxes(layout, (1, 8))
    assert [box.start[1] for box in boxes] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert device_boxes(TensorLayout((), MESH), ()) == [Box((), ())] * 8


def test_parse_mesh() -> None:
    assert parse_mesh("data=4,model=2") == MESH
    assert parse_mesh(" x = 8 ") == DeviceMesh((8,), ("x",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mesh '': expected NAME=SIZE,NAME=SIZE such as data=4,model=2, found ''"),
        ("data", "found 'data'"),
        ("data=", "found 'data='"),
        ("=4", "found '=4'"),
        ("data=4,", "found ''"),
        ("data=4x", "found 'data=4x'"),
        ("data=-4", "found 'data=-4'"),
        ("data=²", "found 'data=²'"),
        ("data=4,data=2", r"must differ, but are \['data', 'data'\]"),
        ("data=0", "at least 1"),
        ("data=" + "9" * 5000, "at most 64 axes"),
    ],
)
def test_parse_mesh_refusals(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        parse_mesh(text)
