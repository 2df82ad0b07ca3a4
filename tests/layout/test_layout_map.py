from __future__ import annotations

import copy
import operator
from typing import Any

import pytest

from reshard.errors import LayoutError
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_map import LayoutMap
from reshard.layout.tensor_layout import TensorLayout

MESH = DeviceMesh((4, 2), ("data", "model"))
ROWS, COLUMNS = TensorLayout(("model", None), MESH), TensorLayout((None, "model"), MESH)


@pytest.fixture
def layouts() -> LayoutMap:
    layouts = LayoutMap(MESH)
    layouts["dense.*kernel"] = (None, "model")
    layouts["dense.*bias"] = ["model"]
    return layouts


def test_keys_are_searched_in_the_name(layouts: LayoutMap) -> None:
    assert layouts["my_model/dense_1/kernel"] == COLUMNS
    assert layouts["dense/bias"] == TensorLayout(("model",), MESH)
    assert layouts["conv/kernel"] is None


def test_exact_key_comes_before_patterns(layouts: LayoutMap) -> None:
    layouts["dense/kernel"] = ROWS
    assert layouts["dense/kernel"] == ROWS
    assert layouts["x/dense_2/kernel"] == COLUMNS
    layouts["odd[0].kernel"] = ROWS
    assert layouts["odd[0].kernel"] == ROWS


@pytest.mark.parametrize(
    ("match", "found"),
    [
        ("search", {"a/b", "a/b/c", "x/a/b"}),
        ("match", {"a/b", "a/b/c"}),
        ("fullmatch", {"a/b"}),
    ],
)
def test_dialects(match: Any, found: set[str]) -> None:
    layouts = LayoutMap(MESH, match=match)
    layouts["a/."] = ROWS
    assert {name for name in ("a/b", "a/b/c", "x/a/b", "b") if layouts[name]} == found


def test_two_matches_are_refused_and_listed(layouts: LayoutMap) -> None:
    layouts["kernel"] = ROWS
    with pytest.raises(
        LayoutError,
        match=r"'dense/kernel' matches multiple layout specification keys: 'dense\.\*kernel', 'kernel'; "
        r"narrow them, set the exact name, or use ambiguous='first'",
    ):
        layouts["dense/kernel"]
    with pytest.raises(LayoutError, match="multiple layout specification keys"):
        layouts.get("dense/kernel")


def test_first_in_insertion_order_wins_with_ambiguous_first() -> None:
    layouts = LayoutMap(MESH, ambiguous="first")
    layouts["kernel"] = ROWS
    layouts["dense"] = COLUMNS
    assert layouts["dense/kernel"] == ROWS
    assert layouts.match("dense/kernel") == ["kernel", "dense"]


def test_match_lists_every_key(layouts: LayoutMap) -> None:
    layouts["dense/kernel"] = ROWS
    assert layouts.match("dense/kernel") == ["dense/kernel", "dense.*kernel"]
    assert layouts.match("conv") == []


def test_get_returns_the_default(layouts: LayoutMap) -> None:
    assert layouts.get("dense/kernel") == COLUMNS
    assert layouts.get("conv") is None
    assert layouts.get("conv", ROWS) == ROWS


def test_dict_parts_are_about_the_keys(layouts: LayoutMap) -> None:
    assert (len(layouts), list(layouts)) == (2, ["dense.*kernel", "dense.*bias"])
    assert "dense.*kernel" in layouts
    assert "dense/kernel" not in layouts
    assert dict(layouts.items())["dense.*kernel"] == COLUMNS
    del layouts["dense.*bias"]
    assert layouts["dense/bias"] is None
    with pytest.raises(KeyError):
        del layouts["dense/kernel"]
    with pytest.raises(KeyError):
        layouts.pop("dense/kernel")
    assert layouts.pop("dense/kernel", 3) == 3
    assert layouts.setdefault("dense/kernel", ROWS) == ROWS
    assert layouts.setdefault("dense/kernel", COLUMNS) == ROWS
    assert layouts.pop("dense.*kernel") == COLUMNS
    assert layouts["x/dense/kernel"] == ROWS
    layouts.clear()
    assert (len(layouts), layouts["dense/kernel"]) == (0, None)


def test_a_deleted_key_can_be_set_again(layouts: LayoutMap) -> None:
    del layouts["dense.*kernel"]
    layouts["dense.*kernel"] = ROWS
    assert layouts["dense/kernel"] == ROWS


def test_meshes_are_injected_but_never_replaced(layouts: LayoutMap) -> None:
    other = DeviceMesh((8,), ("model",))
    layouts["a"] = TensorLayout(("model",), other)
    layouts["b"] = TensorLayout(("model",))
    assert layouts["a"] == TensorLayout(("model",), other)
    assert layouts["b"] == TensorLayout(("model",), MESH)
    assert layouts.device_mesh == MESH
    without = LayoutMap()
    without["a"] = ("x",)
    assert without["a"] == TensorLayout(("x",))


def test_duplicates_are_refused(layouts: LayoutMap) -> None:
    with pytest.raises(
        ValueError, match=r"^dense\.\*kernel already exist in the LayoutMap with value"
    ):
        layouts["dense.*kernel"] = ROWS
    assert layouts["dense/kernel"] == COLUMNS


@pytest.mark.parametrize(
    ("key", "layout", "message"),
    [
        ("a(", ROWS, r"key 'a\(' is not a regular expression: missing \), unterminated subpattern at position 1"),
        ("a{99999999999}", ROWS, r"key 'a\{99999999999\}' is too large for a regular expression"),
        ("a", "model", "'a' was given 'model'; expected a TensorLayout, a tuple of its axes or a PartitionSpec"),
        ("a", None, "'a' was given None; expected a TensorLayout"),
        ("a", {"model"}, "expected a TensorLayout, a tuple"),
        ("a", ("x",), r"'a': invalid axis names for layout \[x\]: 'x' not in the mesh"),
        ("a", TensorLayout(("x",)), r"'a': invalid axis names"),
        ("a", ("model", "model"), "'a': mesh axis 'model' is used twice"),
        (3, ROWS, "a key of a layout map must be a string, not 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_set(layouts: LayoutMap, key: Any, layout: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layouts[key] = layout
    assert len(layouts) == 2


def test_options_are_checked() -> None:
    wrong: Any = "glob"
    with pytest.raises(
        LayoutError, match="match='glob' is not one of 'search', 'match', 'fullmatch'"
    ):
        LayoutMap(match=wrong)
    with pytest.raises(LayoutError, match="ambiguous='glob' is not one of 'error', 'first'"):
        LayoutMap(ambiguous=wrong)


def test_it_is_joined_and_copied_as_a_dict(layouts: LayoutMap) -> None:
    more = {"conv": ROWS}
    both = layouts | more
    assert list(both) == ["dense.*kernel", "dense.*bias", "conv"]
    assert list(reversed(both)) == ["conv", "dense.*bias", "dense.*kernel"]
    assert (both.device_mesh, both["x/conv"]) == (MESH, ROWS)
    assert both == {**layouts, **more}
    assert both != layouts
    again = copy.copy(layouts)
    again |= more
    assert (again, len(layouts)) == (both, 2)
    assert (again.popitem(), again) == (("conv", ROWS), layouts)
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.or_(layouts, 3)


def test_an_update_is_made_in_full_or_not_at_all(layouts: LayoutMap) -> None:
    with pytest.raises(LayoutError, match="not a regular expression"):
        layouts.update({"fine": ROWS, "a(": ROWS})
    with pytest.raises(LayoutError, match="already exist in"):
        layouts |= {"fine": ROWS, "dense.*bias": ROWS}
    assert list(layouts) == ["dense.*kernel", "dense.*bias"]
    layouts.update([("a", ["model"])], b=(None, "model"))
    assert (layouts["a"], layouts["b"]) == (TensorLayout(("model",), MESH), COLUMNS)


@pytest.mark.parametrize("name", [3, None, b"dense/kernel", ("dense", "kernel"), ["dense"]])
def test_only_a_name_can_be_looked_up(layouts: LayoutMap, name: Any) -> None:
    for look_up in (layouts.__getitem__, layouts.get, layouts.match):
        with pytest.raises(
            LayoutError, match="looked up by the name of a tensor, a string, not by"
        ):
            look_up(name)


def test_the_mesh_has_two_names() -> None:
    assert (
        LayoutMap(mesh=MESH).get_default_mesh() == LayoutMap(device_mesh=MESH).device_mesh == MESH
    )
    with pytest.raises(LayoutError, match="device_mesh and mesh are two names of one argument"):
        LayoutMap(MESH, mesh=MESH)
