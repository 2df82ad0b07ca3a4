"""From every form of layout that users give to the slices of one tensor, and the warnings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reshard.errors import LayoutError
from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import LayoutFile
from reshard.layout.layout_map import LayoutMap
from reshard.layout.read_layout import given_layout, parse_layout
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import SameAxes, TensorSplit, layout_of, layout_warnings, split

MESH = DeviceMesh((4, 2), ("data", "model"))
LINE = DeviceMesh((8,), ("x",))
CONTENT = {
    "mesh": {"axes": ["data", "model"], "shape": [4, 2]},
    "rules": [{"match": "kernel", "axes": [None, "model"]}],
}


def tensor(name="kernel", shape=(16, 8), layout=None):
    return TensorSpec(name, shape, "float32", Grid.whole(shape), layout=layout)


def layout_map(**keys):
    layouts = LayoutMap(MESH)
    for key, axes in keys.items():
        layouts[key] = axes
    return layouts


# ---- what may be given ----


def test_every_form_of_the_same_layout(tmp_path):
    expected = parse_layout(CONTENT)
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(CONTENT))
    for given in (CONTENT, expected, file, str(file)):
        assert layout_of(given_layout(given), None) == expected
    assert layout_of(expected, None) is expected


def test_nothing_is_nothing():
    assert layout_of(None, None) is None


def test_a_mesh_alone():
    for mesh in (MESH, "data=4,model=2"):
        assert layout_of(None, mesh) == SameAxes(MESH)


def test_a_mesh_takes_the_place_of_the_files():
    other = DeviceMesh((2, 4), ("data", "model"))
    assert layout_of(CONTENT, "data=2,model=4").mesh == other
    assert layout_of(CONTENT, other).rules == layout_of(CONTENT, None).rules


def test_a_mesh_without_the_axes_of_the_rules():
    with pytest.raises(LayoutError, match=r"rules\[0\] 'kernel'.*'model' not in the mesh \(x=8\)"):
        layout_of(CONTENT, LINE)
    remedy = re.escape('or replicate the dimensions that they split (missing_axes="replicate")')
    with pytest.raises(LayoutError, match=remedy):
        layout_of(CONTENT, LINE)


def test_axes_that_the_mesh_lacks_are_left_out_where_asked():
    line = DeviceMesh((4,), ("model",))
    file = layout_of(
        {"mesh": {"axes": ["data", "model"], "shape": [4, 2]},
         "rules": [{"match": "kernel", "axes": [["data", "model"]]}]},
        line, "replicate",
    )  # fmt: skip
    assert split(tensor(), tensor(), file).layout == TensorLayout(("model", None), line)
    lost = "the mesh (model=4) has no axis 'data'; what it split is replicated instead"
    assert lost in list(layout_warnings(file, ["kernel"]))

    same = layout_of(None, line, "replicate")
    source = tensor(layout=TensorLayout((("data", "model"), None), MESH))
    assert split(tensor(), source, same).layout == TensorLayout(("model", None), line)
    assert list(layout_warnings(same, ["kernel"], [source])) == [lost]
    assert list(layout_warnings(same, ["kernel"], [tensor()])) == []


def test_what_becomes_of_missing_axes_is_one_of_two():
    with pytest.raises(
        LayoutError, match="missing_axes is 'drop'; expected 'error' or 'replicate'"
    ):
        layout_of(None, MESH, "drop")


def test_a_layout_map_is_taken_as_it_is():
    layouts = layout_map(kernel=("data",))
    assert layout_of(layouts, None) is layouts
    with pytest.raises(LayoutError, match="a LayoutMap has a mesh of its own; leave 'mesh' out"):
        layout_of(layouts, MESH)


@pytest.mark.parametrize("given", [7, ["rules"], b"layout.yaml", object])
def test_what_is_no_layout(given):
    with pytest.raises(LayoutError, match="expected the path of a layout file, its content as a"):
        layout_of(given, None)


@pytest.mark.parametrize("given", [8, {"x": 8}, (4, 2)])
def test_what_is_no_mesh(given):
    with pytest.raises(
        LayoutError, match=r"mesh is .*; expected a DeviceMesh, a jax.sharding.Mesh or text such as"
    ):
        layout_of(None, given)


# ---- how one tensor is split ----


def test_without_a_layout_the_sources_is_kept():
    layout = TensorLayout(("data", "model"), MESH)
    source = tensor(layout=layout)
    assert split(tensor(), source, None) == TensorSplit(layout, Grid.regular((16, 8), (4, 4)))


def test_by_a_file_of_changes_only_the_sources_is_kept():
    source = tensor(layout=TensorLayout((None, "model"), MESH))
    file = parse_layout({"select": ["kernel"], "cast": [{"match": "kernel", "dtype": "bfloat16"}]})
    assert split(tensor(), source, file) == split(tensor(), source, None)


def test_by_a_mesh_alone_the_axes_are_the_sources():
    source = tensor(layout=TensorLayout(("data", "model"), MESH))
    other = DeviceMesh((2, 8), ("data", "model"))
    expected = TensorSplit(TensorLayout(("data", "model"), other), Grid.regular((16, 8), (8, 1)))
    assert split(tensor(), source, SameAxes(other)) == expected
    assert split(tensor(), tensor(), SameAxes(other)).slices == Grid.whole((16, 8))


def test_by_a_mesh_without_the_axes_of_the_source():
    source = tensor(layout=TensorLayout(("data", "model"), MESH))
    with pytest.raises(LayoutError) as caught:
        split(tensor(), source, SameAxes(LINE))
    for text in (
        "'kernel' keeps the source's axes [data, model] over ",
        "name the mesh's axes as the source does, say with a layout how tensors are split, or replicate the dimensions "
        'that they split (missing_axes="replicate")',
    ):
        assert text in str(caught.value)


def test_by_a_file():
    found = split(tensor(), tensor(), parse_layout(CONTENT))
    assert found.layout == TensorLayout((None, "model"), MESH)
    assert found.slices == Grid.regular((16, 8), (16, 4))
    assert found.partition is None


def test_by_a_file_that_says_nothing_of_it():
    found = split(tensor("bias"), tensor("bias"), parse_layout(CONTENT))
    assert found == TensorSplit(TensorLayout((None, None), MESH), Grid.whole((16, 8)))


def test_by_a_file_without_a_mesh_no_layout_is_recorded():
    assert split(tensor(), tensor(), LayoutFile()) == TensorSplit(None, Grid.whole((16, 8)))


def test_by_a_partition():
    file = parse_layout({"partitions": [{"match": "kernel", "fixed_shards": 3}]})
    found = split(tensor(), tensor(), file)
    assert found.layout is None
    assert found.slices == Grid((16, 8), ((0, 6, 11, 16), (0, 8)))
    assert found.partition == {"strategy": "fixed_shards", "fixed_shards": 3, "axis": 0, "shards": 3}  # fmt: skip


def test_by_a_map_axes_are_padded():
    found = split(tensor(), tensor(), layout_map(kern=("data",)))
    assert found.layout == TensorLayout(("data", None), MESH)
    assert found.slices == Grid.regular((16, 8), (4, 8))


def test_by_a_map_that_says_nothing_of_it():
    found = split(tensor("bias", (8,)), tensor("bias", (8,)), layout_map(kern=("data",)))
    assert found == TensorSplit(TensorLayout((None,), MESH), Grid.whole((8,)))
    assert split(tensor(), tensor(), LayoutMap()) == TensorSplit(None, Grid.whole((16, 8)))


def test_by_a_map_that_does_not_divide():
    with pytest.raises(LayoutError) as caught:
        split(tensor("kernel", (6, 8)), tensor("kernel", (6, 8)), layout_map(kern=("data",)))
    for text in ("'kernel'", "6", "'data'", "4"):
        assert text in str(caught.value)


def test_by_a_map_with_more_axes_than_dimensions():
    with pytest.raises(LayoutError) as caught:
        split(
            tensor("kernel", (8,)), tensor("kernel", (8,)), layout_map(kern=("data", None, "model"))
        )
    assert "'kernel'" in str(caught.value)


# ---- warnings ----


def warned(layout, *names):
    return list(layout_warnings(layout, names))


def test_no_layout_no_warning():
    assert warned(None, "a") == []
    assert warned(parse_layout(CONTENT), "kernel") == []


def test_a_rule_that_matches_nothing():
    (text,) = warned(parse_layout(CONTENT), "bias")
    assert text == "rules[0] 'kernel' (layout) matches no tensor"
    file = parse_layout({"partitions": [{"match": "table", "fixed_shards": 3}]})
    assert warned(file, "bias") == ["partitions[0] 'table' (layout) matches no tensor"]


def test_a_key_that_matches_nothing():
    assert warned(layout_map(kern=("data",), bias=()), "bias") == [
        "the layout map's key 'kern' matches no tensor"
    ]


def test_rules_that_overlap():
    rules = [{"match": "kernel", "axes": []}, {"match": "dense", "axes": []}]
    names = [f"dense/{i}/kernel" for i in range(4)]
    (text,) = warned(parse_layout({"rules": rules}), *names)
    assert text == (
        "4 tensors match both rules[0] 'kernel' (layout) and rules[1] 'dense' (layout); the first "
        "decides (dense/0/kernel, dense/1/kernel, dense/2/kernel, …)"
    )


def test_paths_are_read_once_with_their_name_in_errors(tmp_path):
    file = Path(tmp_path / "layout.yaml")
    file.write_text("rules:\n  - {match: kernel}\n")
    with pytest.raises(LayoutError, match=r"layout\.yaml:2.*axes"):
        layout_of(given_layout(file), None)
