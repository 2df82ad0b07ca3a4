"""Models of a scope have the layouts that the real Keras of dtensor gives them, or those that the page states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard import DeviceMesh, LayoutError, LayoutMap, TensorLayout
from tests.campaigns import examples
from tests.oracles.keras_models import model_of
from tests.oracles.oracle import Oracle, RefusedError
from tests.variables.models import layouts, mesh

pytestmark = pytest.mark.xdist_group("tensorflow")

DATA = np.ones((4, 8), np.float32)
LAYERS = ["dense", "norm", "drop"]
OF_ANY_RANK = {"dense", "drop", "block", "list"}
DEPTH = 2
ROOTS = ["model", "functional", "sequential", "unknown"]
INNER = {
    "model": ["list", "block", "functional", "sequential", "unknown"],
    "functional": ["block", "functional", "sequential"],
    "sequential": ["block", "functional", "sequential"],
    "unknown": ["block", "functional", "sequential"],
    "block": ["list", "block"],
    "list": [],
}
"""What upstream can hold in what; the rest is in the page."""

AXES = {
    "kernel": [(None, "model"), ("data", None), ("data", "model"), (None, None)],
    "bias": [("model",), ("data",), (None,)],
}


@st.composite
def models(draw: Any) -> tuple[str, list[Any]]:
    """A kind of model and its parts: layers, lists, blocks, inner models, shared layers."""
    numbers = iter(range(1000))

    def parts(holder: str, depth: int, any_rank: bool = False) -> list[Any]:
        kinds = LAYERS if holder != "list" else ["dense", "norm"]
        kinds = kinds + (INNER[holder] if depth else [])
        # Upstream builds an inner Sequential without an input for another rank than it is called with.
        any_rank = any_rank or (holder == "unknown" and depth < DEPTH)
        if any_rank:
            kinds = [kind for kind in kinds if kind in OF_ANY_RANK]
        found: list[Any] = [{"layer": "dense", "name": f"d{next(numbers)}"}]
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=3)):
            name = f"{kind[0]}{next(numbers)}"
            inner = {} if kind in LAYERS else {"parts": parts(kind, depth - 1, any_rank)}
            found.append({"layer": kind, "name": name, **inner})
        if holder in ("model", "functional") and draw(st.booleans()):
            found.append({"layer": "same", "name": f"s{next(numbers)}", "of": found[0]["name"]})
        return found

    kind = draw(st.sampled_from(ROOTS))
    return kind, parts(kind, DEPTH)


def names_in(parts: list[Any]) -> list[str]:
    return [n for p in parts for n in (p["name"], *names_in(p.get("parts", [])))]


@st.composite
def rules(draw: Any, names: list[str]) -> list[Any]:
    """Keys as dtensor matches them, from the beginning of a path; the first that matches counts."""
    name = st.sampled_from(names)
    start = st.one_of(
        st.just(".*"), name, name.map(lambda n: f".*{n}"), name.map(lambda n: f".*{n}.*"),
        st.just(".*0"), st.just(r"[a-z]\d+\.[a-z]\d+"), st.just("d.*"),
    )  # fmt: skip
    found: dict[str, Any] = {}
    for _ in range(draw(st.integers(0, 5))):
        weight = draw(st.sampled_from(list(AXES)))
        found.setdefault(rf"{draw(start)}\.{weight}", draw(st.sampled_from(AXES[weight])))
    return list(found.items())


def axes_by_name(model: Any) -> dict[str, list[str | None]]:
    """The axes of every weight, as ``layer/weight``; random state is checked by the way."""
    found = {}
    for layer in model._flatten_layers():
        for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
            spec = tuple(variable.value.sharding.spec)
            found[f"{layer.name}/{variable.name}"] = [*spec, *[None] * (variable.ndim - len(spec))]
        for generator in layer._seed_generators:
            assert generator.state.value.is_fully_replicated
            assert len(generator.state.value.devices()) == 8
    return found


@pytest.mark.filterwarnings("ignore::reshard.LayoutWarning")  # drawn keys need not match
@settings(max_examples=examples(8))
@given(data=st.data())
def test_the_same_weights_have_the_same_layouts(tensorflow: Oracle, data: Any) -> None:
    kind, parts = data.draw(models())
    keys = data.draw(rules(names_in(parts)))
    theirs = tensorflow.ask("dtensor_model", kind=kind, parts=parts, rules=keys)
    keras.backend.clear_session()
    with layouts(**dict(keys)).scope():
        model = model_of(keras, kind, parts)
    assert model(DATA).shape == (4, 8)
    assert axes_by_name(model) == theirs


class Tied(keras.Model):
    def __init__(self, named: bool = True) -> None:
        super().__init__()
        weight = self.add_weight(shape=(8,), name="w")
        if named:
            self.first = self.second = weight

    def call(self, x: Any) -> Any:
        return x


class OfDict(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.by_name = {"x": keras.layers.Dense(8, name="x")}

    def call(self, x: Any) -> Any:
        return self.by_name["x"](x)


class Regularized(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.d = keras.layers.Dense(8, kernel_regularizer="l2")

    def call(self, x: Any) -> Any:
        return self.d(x)


def made(make: Callable[[], Any], **keys: Any) -> Any:
    with layouts(**keys).scope():
        model = make()
    model(DATA)
    return model


def sequential(*parts: Any) -> Any:
    return keras.Sequential([keras.Input((8,)), *parts])


def nested(outer: str, inner: str, key: str) -> list[str | None]:
    parts = [{"layer": inner, "name": "inner", "parts": [{"layer": "dense", "name": "d"}]}]
    return axes_by_name(made(lambda: model_of(keras, outer, parts), **{key: ("data",)}))["d/kernel"]


def kept() -> bool:
    layer = keras.layers.Dense(8)
    with layouts().scope():
        outputs = layer(inputs := keras.Input((8,)))
        before = layer.kernel
        keras.Model(inputs, outputs)
    return layer.kernel is before and before.value is not None


def ambiguous() -> Any:
    found = LayoutMap(mesh())
    found["d.*"], found[".*bias"] = ("data",), ("model",)
    return found["d.bias"]


def searched() -> Any:
    found = LayoutMap(mesh())
    found["kernel"] = ("data",)
    return found["d1.kernel"]


def no_mesh() -> Any:
    with LayoutMap().scope():
        return sequential(keras.layers.Dense(8))


def many_before_an_error() -> list[bool]:
    first, second = keras.layers.Dense(8, name="first"), keras.layers.Dense(8, name="second")
    with pytest.raises(LayoutError, match=r"second\.bias"):
        made(lambda: sequential(first, second), **{"second.bias": (None, "model")})
    return [d.kernel._value is not None for d in (first, second)]


def other_devices() -> Any:
    few = DeviceMesh((2,), ("data",), jax.devices()[:2])
    return made(
        lambda: sequential(keras.layers.Dense(8, name="d")),
        **{"d.kernel": TensorLayout((None,), few)},
    )


def random_state() -> bool:
    model = made(lambda: sequential(keras.layers.Dropout(0.5)), **{".*": ("model",)})
    return bool(model.layers[0].seed_generator.state.value.is_fully_replicated)


CASES: dict[str, tuple[Any, Callable[[], Any], Any]] = {
    "key `kernel`, path `d1.kernel`": (None, searched, TensorLayout(("data",), mesh())),
    "two keys that match a path": (["data"], ambiguous, LayoutError),
    "where a variable lies": ("Layout", lambda: type(made(lambda: sequential(keras.layers.Dense(8))).layers[0].kernel.layout).__name__, "TensorLayout"),
    "a weight that comes to life": (False, kept, True),
    "a weight under two attributes": (False, lambda: (m := made(Tied)).first is m.second, True),
    "a weight under no attribute": ("KeyError", lambda: len(made(lambda: Tied(named=False)).weights), 1),
    "random state, with a key `.*`": ("UnknownError", random_state, True),
    "nothing matches, and the map has no mesh": ("TypeError", no_mesh, LayoutError),
    "a layout over other devices than the default mesh": ("2", other_devices, LayoutError),
    "an error at one of many weights": ([True, False], many_before_an_error, [False, False]),
    "a subclassed model inside a subclassed one": ("ValueError", lambda: nested("model", "model", "inner.d.kernel"), ["data", None]),
    "a subclassed model inside a Functional one": ("TypeError", lambda: nested("functional", "model", "d.kernel"), ["data", None]),
    "a Sequential model without an input inside a Functional one": ("TypeError", lambda: nested("functional", "unknown", "d.kernel"), ["data", None]),
    "layers in a dict, in a subclassed model": ("AttributeError", lambda: axes_by_name(made(OfDict, **{"by_name.x.kernel": ("data",)}))["x/kernel"], ["data", None]),
    "a regularizer of a layer inside a layer": ("TypeError", lambda: len(made(lambda: sequential(Regularized())).losses), 1),
}  # fmt: skip
"""A row of the page: upstream's answer or the kind of its error, and ours."""


@pytest.mark.parametrize("name", CASES)
def test_both_answer_as_the_page_says(tensorflow: Oracle, name: str) -> None:
    theirs, ours, expected = CASES[name]
    try:
        found = tensorflow.ask("dtensor_case", name=name)
    except RefusedError as error:
        found = error.kind
    assert found == theirs
    if isinstance(expected, type):
        with pytest.raises(expected):
            ours()
    else:
        assert ours() == expected


def test_the_page_lists_these_cases() -> None:
    page = (
        Path(__file__).parents[2] / "docs/reference/compared-with-keras-and-tensorflow.md"
    ).read_text("utf-8")
    section = page.split("## dtensor LayoutMap and layout_map_scope")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows[1:]] == list(CASES)
    assert all(len(row) == 3 for row in rows)
