"""Every deliberate difference from keras.distribution, run on both sides; docs/reference/compared-with-keras-and-tensorflow.md lists them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

import reshard
from reshard import (
    DeviceMesh,
    LayoutError,
    LayoutMap,
    TensorLayout,
    VariableError,
    VariableTypeError,
)

DEVICES = jax.devices()
MESH = DeviceMesh((4, 2), ("data", "model"), DEVICES)
EXPLICIT = DeviceMesh((4, 2), ("data", "model"), DEVICES, axis_types=["Explicit"] * 2)
VALUE = np.zeros((8, 6), np.float32)
theirs = keras.distribution
Make = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """What both are asked, as the table names it; an outcome is a value or the type of an error."""

    name: str
    upstream: tuple[Make, Any]
    ours: tuple[Make, Any]


def their_map(**entries: Any) -> Any:
    layouts = theirs.LayoutMap(MESH.to_keras())
    for key, axes in entries.items():
        layouts[key] = axes
    return layouts


def our_map(**entries: Any) -> LayoutMap:
    layouts = LayoutMap(MESH)
    for key, axes in entries.items():
        layouts[key] = axes
    return layouts


def put(layouts: Any, key: str, value: Any) -> Any:
    layouts[key] = value
    return layouts


def updated(layouts: Any) -> list[str]:
    with pytest.raises(ValueError, match="b"):
        layouts.update({"a": ("data",), "b": 3})
    return list(layouts)


def put_in_copy(layouts: Any) -> Any:
    put(copy.copy(layouts), "a", ("data",))
    return layouts


def popped(layouts: Any, key: str) -> Any:
    return layouts.pop(key, "default")


def kept_mesh(layouts: Any, layout: Any) -> bool:
    """Whether the layout is as it was after it was put in a map with a mesh."""
    layouts["a"] = layout
    return layout.device_mesh is None


def donated() -> jax.Array:
    array = jnp.asarray(VALUE) + 1
    jax.block_until_ready(jax.jit(lambda v: v + 1, donate_argnums=0)(array))
    return array


def explicit(distribute: Any) -> Any:
    """The axes that split a traced tensor after it was moved from one explicit axis to another."""
    start = jax.device_put(VALUE, TensorLayout(("data",), EXPLICIT).backend_layout)
    goal = TensorLayout((None, "model"), EXPLICIT).backend_layout
    return tuple(jax.jit(lambda v: distribute(v, goal))(start).sharding.spec)


FORMAT = Format(Layout((0, 1)), TensorLayout(("data",), MESH).backend_layout)
ROWS = TensorLayout(("data",), MESH)
DEEP = TensorLayout((None, None, "data"), MESH)

CASES = [
    Case(
        "`DeviceMesh(shape, axis_names)` without devices",
        (lambda: theirs.DeviceMesh((8,), ["x"]).devices.size, 8),
        (lambda: DeviceMesh((8,), ["x"]).devices, None),
    ),
    Case(
        "`mesh.axis_names`",
        (lambda: type(MESH.to_keras().axis_names), list),
        (
            lambda: [MESH.axis_names == ["data", "model"], {MESH.axis_names}],
            [True, {("data", "model")}],
        ),
    ),
    Case(
        "a device given twice",
        (lambda: theirs.DeviceMesh((2,), ["x"], [DEVICES[0]] * 2).shape, (2,)),
        (lambda: DeviceMesh((2,), ["x"], [DEVICES[0]] * 2), LayoutError),
    ),
    Case(
        "two mesh axes of one name",
        (lambda: theirs.DeviceMesh((4, 2), ["x", "x"]).axis_names, ["x", "x"]),
        (lambda: DeviceMesh((4, 2), ["x", "x"]), LayoutError),
    ),
    Case(
        "a mesh axis of size 0",
        (lambda: theirs.DeviceMesh((0,), ["x"], []).shape, (0,)),
        (lambda: DeviceMesh((0,), ["x"]), LayoutError),
    ),
    Case(
        '`TensorLayout("model")`',
        (lambda: theirs.TensorLayout("model").axes, tuple("model")),
        (lambda: TensorLayout("model"), LayoutError),
    ),
    Case(
        "one mesh axis for two dimensions",
        (lambda: theirs.TensorLayout(("data", "data"), MESH.to_keras()).axes, ("data", "data")),
        (lambda: TensorLayout(("data", "data"), MESH), LayoutError),
    ),
    Case(
        "several mesh axes for one dimension, over a mesh",
        (lambda: theirs.TensorLayout((("data", "model"),), MESH.to_keras()), ValueError),
        (lambda: TensorLayout((("data", "model"),), MESH).axes, (("data", "model"),)),
    ),
    Case(
        "two equal layouts",
        (lambda: theirs.TensorLayout(("data",)) == theirs.TensorLayout(("data",)), False),
        (lambda: TensorLayout(("data",)) == TensorLayout(["data"]), True),
    ),
    Case(
        "key `kernel`, name `dense/kernel`",
        (lambda: their_map(kernel=("data",))["dense/kernel"], None),
        (lambda: our_map(kernel=("data",))["dense/kernel"], ROWS),
    ),
    Case(
        "a list of axes as a value of `LayoutMap`",
        (lambda: their_map(a=["data"]), ValueError),
        (lambda: our_map(a=["data"])["a"], ROWS),
    ),
    Case(
        "a layout without a mesh put in a `LayoutMap` that has one",
        (lambda: kept_mesh(their_map(), theirs.TensorLayout(("data",))), False),
        (lambda: kept_mesh(our_map(), TensorLayout(("data",))), True),
    ),
    Case(
        '`"missing" in layout_map`',
        (lambda: "missing" in their_map(), True),
        (lambda: "missing" in our_map(), False),
    ),
    Case(
        '`layout_map.get("missing", default)`',
        (lambda: their_map().get("missing", "default"), None),
        (lambda: our_map().get("missing", "default"), "default"),
    ),
    Case(
        '`layout_map.pop("missing", default)`',
        (lambda: popped(their_map(), "missing"), KeyError),
        (lambda: popped(our_map(), "missing"), "default"),
    ),
    Case(
        '`layout_map.setdefault("missing", axes)`',
        (lambda: their_map().setdefault("missing", ("data",)), None),
        (lambda: our_map().setdefault("missing", ("data",)), ROWS),
    ),
    Case(
        "joining layout maps by the operator of dicts",
        (lambda: their_map() | {"a": ("data",)}, TypeError),
        (lambda: list(our_map(b=("data",)) | {"a": ("data",)}), ["b", "a"]),
    ),
    Case(
        "`layout_map.update(entries)` with a wrong one",
        (lambda: updated(their_map()), ["a"]),
        (lambda: updated(our_map()), []),
    ),
    Case(
        "`copy.copy(layout_map)`",
        (lambda: list(put_in_copy(their_map())), ["a"]),
        (lambda: list(put_in_copy(our_map())), []),
    ),
    Case(
        "a set of axes, which has no order",
        (lambda: theirs.TensorLayout({"data"}).axes, ("data",)),
        (lambda: TensorLayout({"data"}), LayoutError),
    ),
    Case(
        "a key that is no regular expression",
        (lambda: put(their_map(), "a(", ("data",))["b"], re.error),
        (lambda: put(our_map(), "a(", ("data",)), LayoutError),
    ),
    Case(
        "`distribute_tensor` by more axes than dimensions",
        (lambda: theirs.distribute_tensor(jnp.asarray(VALUE), DEEP.to_keras()), IndexError),
        (lambda: reshard.distribute_tensor(jnp.asarray(VALUE), DEEP), LayoutError),
    ),
    Case(
        "`distribute_tensor` of a list or a dict",
        (lambda: list(theirs.distribute_tensor({"a": VALUE}, ROWS.to_keras())), ["a"]),
        (lambda: reshard.distribute_tensor({"a": VALUE}, ROWS), VariableTypeError),
    ),
    Case(
        "`distribute_tensor` of a donated array",
        (lambda: theirs.distribute_tensor(donated(), ROWS.to_keras()), RuntimeError),
        (lambda: reshard.distribute_tensor(donated(), ROWS), VariableError),
    ),
    Case(
        "`distribute_tensor` by a `jax.experimental.layout.Format`",
        (lambda: theirs.distribute_tensor(VALUE, FORMAT).sharding, ROWS.backend_layout),
        (lambda: reshard.distribute_tensor(VALUE, FORMAT), VariableTypeError),
    ),
    Case(
        "`distribute_tensor` under `jax.jit`, over axes of the type Explicit",
        (lambda: explicit(theirs.distribute_tensor), ValueError),
        (lambda: explicit(reshard.distribute_tensor), (None, "model")),
    ),
]


def check(run: Make, outcome: Any) -> None:
    if isinstance(outcome, type) and issubclass(outcome, Exception):
        with pytest.raises(outcome):
            run()
    else:
        assert run() == outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_answer_as_the_table_says(case: Case) -> None:
    check(*case.upstream)
    check(*case.ours)


def test_the_table_lists_these_cases() -> None:
    page = (
        Path(__file__).parents[2] / "docs/reference/compared-with-keras-and-tensorflow.md"
    ).read_text()
    section = page.split("## keras.distribution")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows[1:]] == [case.name for case in CASES]
    assert all(len(row) == 3 for row in rows)
