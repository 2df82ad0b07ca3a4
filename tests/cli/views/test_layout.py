from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reshard.cli.views.layout import show_layout
from reshard.errors import LayoutError
from reshard.inspection.layout_preview import preview
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.read_layout import parse_layout
from reshard.layout.tensor_spec import TensorSpec
from tests.cli.show import console, text_of
from tests.cli.specimens import info, spec

SERVING = {
    "mesh": {"axes": ["model"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": [None, "model"]}],
}


def shown(
    mapping: Mapping[str, Any], *specs: TensorSpec, width: int = 80, all_: bool = False
) -> str:
    target = console(width)
    show_layout(target, preview(info(*specs), parse_layout(mapping)), all_)
    return text_of(target)


def test_source_and_target_stand_beside_each_other() -> None:
    text = shown(SERVING, spec("a/kernel"), spec("b/kernel"), spec("bias", (8,), (None,)))
    assert (
        text
        == """\
source mesh data=4, model=2             target mesh model=8
8 devices: model across, data down      8 devices: model across
┌─────────────────┬─────────────────┐   ┌───┬───┬───┬───┬───┬───┬───┬───┐
│        0        │        1        │   │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
├─────────────────┼─────────────────┤   └───┴───┴───┴───┴───┴───┴───┴───┘
│        2        │        3        │
├─────────────────┼─────────────────┤
│        4        │        5        │
├─────────────────┼─────────────────┤
│        6        │        7        │
└─────────────────┴─────────────────┘

16×8, 2 tensors, 1.00 KiB
a/kernel, b/kernel
source [data, model]                    target [null, model]
8 of 4×4, 64 B each                     8 of 16×1, 64 B each
┌─────────────────┬─────────────────┐   ┌───┬───┬───┬───┬───┬───┬───┬───┐
│        0        │        1        │   │   │   │   │   │   │   │   │   │
├─────────────────┼─────────────────┤   │   │   │   │   │   │   │   │   │
│        2        │        3        │   │   │   │   │   │   │   │   │   │
├─────────────────┼─────────────────┤   │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
│        4        │        5        │   │   │   │   │   │   │   │   │   │
├─────────────────┼─────────────────┤   │   │   │   │   │   │   │   │   │
│        6        │        7        │   │   │   │   │   │   │   │   │   │
└─────────────────┴─────────────────┘   └───┴───┴───┴───┴───┴───┴───┴───┘

whole on every device, before and after: 1 tensor, 32 B
bias
"""
    )


def test_a_narrow_terminal_gets_one_below_the_other() -> None:
    text = shown(SERVING, spec("a/kernel"), width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.index("source [data, model]") < text.index("target [null, model]")


def test_thousands_of_devices() -> None:
    mesh = DeviceMesh((128, 128), ("data", "model"))
    text = shown(SERVING, spec("kernel", (4096, 4096), ("data", "model"), mesh))
    assert "source mesh data=128, model=128" in text
    assert "16,384 devices, model varies fastest" in text
    assert "16,384 of 32×32, 4.00 KiB each" in text
    assert len(text.splitlines()) < 35


def test_partitions_and_missing_records() -> None:
    mapping = {"partitions": [{"match": "table", "fixed_shards": 3, "axis": 0}]}
    text = shown(mapping, spec("table", (10, 4), None))
    assert "source mesh: not recorded" in text
    assert "source: the layout was not recorded" in text
    assert "target fixed_shards 3 along dimension 0" in text
    assert "3 of ≤ 4×4, 64 B each, numbered" in text


def test_changes_of_the_file_are_applied_and_idle_rules_named() -> None:
    mapping = SERVING | {
        "rules": [
            {"match": "^model/.*kernel", "axes": [None, "model"]},
            {"match": "no", "axes": []},
        ],
        "rename": [{"match": "^params/", "to": "model/"}],
        "drop": ["^opt/"],
    }
    found = preview(info(spec("params/kernel"), spec("opt/kernel")), parse_layout(mapping))
    assert [(t.source, t.target, t.slices.parts) for t in found.tensors] == [
        ("params/kernel", "model/kernel", (1, 8))
    ]
    assert found.warnings == ("rules[1] 'no' (layout) matches no tensor",)


def test_overlapping_rules_are_named() -> None:
    rules = [{"match": "kernel", "axes": [None, "model"]}, {"match": "a/", "axes": []}]
    found = preview(info(spec("a/kernel")), parse_layout(SERVING | {"rules": rules}))
    assert found.warnings == (
        "1 tensor matches both rules[0] 'kernel' (layout) and rules[1] 'a/' (layout); "
        "the first decides (a/kernel)",
    )


def test_a_layout_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LayoutError, match="dimension 1 of size 6 does not divide into 8 parts"):
        preview(info(spec("kernel", (6, 6), (None, None))), parse_layout(SERVING))


def test_a_file_of_changes_only_keeps_the_sources_layouts() -> None:
    text = shown({"select": ["kernel"]}, spec("kernel"), spec("bias", (8,), (None,)))
    assert "target mesh data=4, model=2" in text
    assert "source [data, model]                    target [data, model]" in text
    assert "bias" not in text
