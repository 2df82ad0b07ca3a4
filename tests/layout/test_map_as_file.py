"""A LayoutMap as a layout file: the same axes for every name, or an error."""

from __future__ import annotations

import pytest

import reshard
from reshard.errors import LayoutError
from reshard.layout.layout_file import layout_for
from reshard.layout.read_layout import parse_layout

MESH = reshard.DeviceMesh((2, 4), ("data", "model"))
NAMES = (
    "params/dense/kernel",
    "params/dense/bias",
    "dense/kernel",
    "kernel",
    "params/kernel_scale",
    "other",
)


@pytest.mark.parametrize("match", ["search", "match", "fullmatch"])
@pytest.mark.parametrize("unmatched", ["replicate", "error"])
def test_every_name_has_the_same_axes(match: str, unmatched: str) -> None:
    layouts = reshard.LayoutMap(MESH, match=match, ambiguous="first", unmatched=unmatched)
    layouts["params/.*"] = ("model", None)
    layouts["dense|bias"] = ("data",)
    layouts["params/dense/bias"] = ()
    layouts["kernel"] = (None, ("data", "model"))
    file = parse_layout(layouts.to_mapping())
    for name in NAMES:
        try:
            wanted = layouts[name]
        except LayoutError:
            with pytest.raises(LayoutError, match="unmatched: error"):
                layout_for(file, name, (16, 16), "float32")
            continue
        axes = wanted.axes if wanted is not None else ()
        padded = (*axes, *[None] * (2 - len(axes)))
        found = layout_for(file, name, (16, 16), "float32").layout
        assert (found.axes, found.device_mesh) == (padded, MESH), name


def test_what_a_file_cannot_say() -> None:
    layouts = reshard.LayoutMap(MESH, ambiguous="first")
    layouts[r"kernel(?!_scale)"] = ("model",)
    with pytest.raises(
        LayoutError,
        match=r"^the key 'kernel\(\?!_scale\)' of the LayoutMap: look-ahead and look-behind",
    ):
        layouts.to_mapping()
    several = reshard.LayoutMap(MESH)
    several["a"] = several["b"] = ("model",)
    with pytest.raises(
        LayoutError, match=r"uses the first rule that matches, .* make it with ambiguous='first'"
    ):
        several.to_mapping()
    elsewhere = reshard.LayoutMap(MESH)
    elsewhere["a"] = reshard.TensorLayout(("x",), reshard.DeviceMesh((2,), ("x",)))
    with pytest.raises(
        LayoutError,
        match=r"the key 'a' has a layout over .*; a layout file has one mesh for all rules",
    ):
        elsewhere.to_mapping()
