"""Real Keras models whose variables are placed by this project's LayoutMap."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard import DeviceMesh, LayoutError, LayoutMap, TensorLayout, distribute_tensor
from reshard.layout.layout_map import Ambiguous, Match
from tests.campaigns import examples
from tests.variables import keras_training

DEVICES = jax.devices()
MESH = DeviceMesh((4, 2), ("data", "model"), DEVICES[::-1])


class Subclassed(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first = keras.layers.Dense(16, name="dense")
        self.second = keras.layers.Dense(8, name="dense_1")

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))


def sequential() -> keras.Model:
    layers = [keras.layers.Dense(16, name="dense"), keras.layers.Dense(8, name="dense_1")]
    return keras.Sequential([keras.Input((8,)), *layers], name="seq")


def functional() -> keras.Model:
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, name="dense")(inputs)
    return keras.Model(inputs, keras.layers.Dense(8, name="dense_1")(hidden), name="fun")


def subclassed() -> keras.Model:
    model = Subclassed(name="sub")
    model(keras.Input((8,)))
    return model


MODELS = {"seq/": sequential, "": functional, "sub/": subclassed}
VARIABLES = ("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias")


def placed_by(layouts: Any, build: Any) -> dict[str, Any]:
    """The sharding of each variable of a model that Keras builds under ModelParallel."""
    parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="data")
    try:
        with parallel.scope():
            return {v.path: v.value.sharding for v in build().variables}
    finally:
        keras.utils.clear_session()  # a build that was refused leaves its variables on Keras' list


def lies_as(sharding: Any, layout: TensorLayout | None) -> bool:
    expected = (layout or TensorLayout((), MESH)).backend_layout
    same: bool = sharding.is_equivalent_to(expected, 2 if len(expected.spec) == 2 else 1)
    return same


@pytest.mark.parametrize("prefix", MODELS)
def test_weights_are_distributed_as_the_map_says(prefix: str) -> None:
    layouts = LayoutMap(MESH)
    layouts["dense/kernel"] = (None, "model")
    layouts["dense_1/kernel"] = [("data", "model"), None]
    layouts[f"^{prefix}dense_1/bias$"] = ("model",)
    found = placed_by(layouts.to_keras(), MODELS[prefix])
    assert list(found) == [prefix + name for name in VARIABLES]
    for path, sharding in found.items():
        assert lies_as(sharding, layouts[path]), path
    assert layouts[f"{prefix}dense/bias"] is None
    assert found[f"{prefix}dense/bias"].is_fully_replicated
    kernel = found[f"{prefix}dense_1/kernel"].devices_indices_map((16, 8))
    assert kernel[DEVICES[-1]] == (slice(0, 2), slice(None))


@pytest.mark.parametrize("prefix", MODELS)
def test_an_empty_map_replicates(prefix: str) -> None:
    found = placed_by(LayoutMap(MESH).to_keras(), MODELS[prefix])
    assert len(found) == 4
    assert all(s.is_fully_replicated and s.device_set == set(DEVICES) for s in found.values())


def test_keras_looks_up_the_outputs_of_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = LayoutMap(MESH)
    layouts["dense/kernel"] = (None, "model")
    bridged = layouts.to_keras()
    asked, find = [], type(bridged).__getitem__
    monkeypatch.setattr(
        type(bridged), "__getitem__", lambda self, name: (asked.append(name), find(self, name))[1]
    )
    placed_by(bridged, sequential)
    outputs = {name for name in asked if name.endswith("/output")}
    assert {"seq/dense/output", "seq/dense_1/output"} <= outputs
    assert {f"seq/{name}" for name in VARIABLES} <= set(asked)
    assert not any(layouts.match(name) for name in outputs)


def test_an_explicit_layout_comes_before_the_map() -> None:
    layouts = LayoutMap(MESH)
    layouts["v"] = ("model",)
    explicit = TensorLayout(("data",), MESH).to_keras()
    parallel = keras.distribution.ModelParallel(layout_map=layouts.to_keras())
    with parallel.scope():
        free = keras.Variable(np.zeros(8), name="v")
        bound = keras.Variable(np.zeros(8), name="v", layout=explicit)
    assert lies_as(free.value.sharding, TensorLayout(("model",), MESH))
    assert lies_as(bound.value.sharding, TensorLayout(("data",), MESH))


@pytest.mark.parametrize(
    ("axes", "theirs", "message"),
    [
        ((None, None, "model"), IndexError, "has more axes than dimensions: 3"),
        (("model",), ValueError, "dimension 0 of size 3 does not divide into 2 parts"),
    ],
)
def test_layouts_that_do_not_fit_a_variable(axes: Any, theirs: Any, message: str) -> None:
    layouts = LayoutMap(MESH)
    layouts["v"] = axes
    value = np.zeros((3, 8), np.float32)
    parallel = keras.distribution.ModelParallel(layout_map=layouts.to_keras())
    with parallel.scope(), pytest.raises(theirs):
        keras.Variable(value, name="v")
    with pytest.raises(LayoutError, match=message):
        distribute_tensor(value, TensorLayout(axes, MESH))


KEYS = ("dense.*kernel", "dense/kernel", ".*kernel", "bias", ".*/bias", "seq/dense", "^dense_1",
        "sub.*bias$", "seq/dense/bias", "dense_1/.*")  # fmt: skip
# Of one axis, so that they fit kernels and biases alike.
ENTRIES = st.dictionaries(
    st.sampled_from(KEYS),
    st.sampled_from([("data",), ("model",), (("data", "model"),)]),
    max_size=4,
)


# A subclassed model is built twice by Keras: the first refusal becomes a warning, and the second
# attempt trips over the variables that came before the refused one.
REFUSED = "matches multiple layout specification keys|is already initialized"


@settings(max_examples=examples(8))
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from(["search", "match", "fullmatch"]),
    st.sampled_from(["error", "first"]),
    ENTRIES,
)
def test_any_map_places_every_variable(
    prefix: str, match: Match, ambiguous: Ambiguous, entries: dict[str, Any]
) -> None:
    layouts = LayoutMap(MESH, match, ambiguous)
    for key, axes in entries.items():
        layouts[key] = axes
    paths = [prefix + name for name in VARIABLES]
    if ambiguous == "error" and any(len(layouts.match(p)) > 1 and p not in layouts for p in paths):
        with pytest.raises(ValueError, match=REFUSED):
            placed_by(layouts.to_keras(), MODELS[prefix])
        return
    found = placed_by(layouts.to_keras(), MODELS[prefix])
    assert list(found) == paths
    for path, sharding in found.items():
        assert lies_as(sharding, layouts[path]), path


@settings(max_examples=examples(6))
@given(
    st.sampled_from(list(MODELS)),
    ENTRIES.map(lambda d: {k: a for k, a in d.items() if not isinstance(a[0], tuple)}),
)
def test_full_matches_place_as_a_map_of_keras_does(prefix: str, entries: dict[str, Any]) -> None:
    ours, theirs = LayoutMap(MESH, "fullmatch"), keras.distribution.LayoutMap(MESH.to_keras())
    for key, axes in entries.items():
        ours[key] = axes
        theirs[key] = axes
    try:
        expected = placed_by(theirs, MODELS[prefix])
    except ValueError:
        with pytest.raises(ValueError, match=REFUSED):
            placed_by(ours.to_keras(), MODELS[prefix])
        return
    assert placed_by(ours.to_keras(), MODELS[prefix]) == expected


def test_training_continues_on_another_mesh() -> None:
    """Two steps on one mesh and two on another, against four on the first.

    The sums over the batch are split differently, so losses may differ in the last bits of float32.
    """
    first = keras_training.layouts_on(DeviceMesh((4, 2), ("data", "model"), DEVICES))
    second = keras_training.layouts_on(DeviceMesh((2, 4), ("data", "model"), DEVICES[::-1]))
    unbroken = keras_training.train(keras_training.new_model(first), first, range(4))

    model = keras_training.new_model(first)
    losses = keras_training.train(model, first, range(2))
    before = jax.tree.map(np.asarray, keras_training.state(model))
    later = keras_training.new_model(second, seed=1)
    keras_training.load(later, before)
    after = keras_training.state(later)
    assert keras_training.bits(after) == keras_training.bits(before)
    kernel = second["hidden/kernel"]
    assert kernel is not None
    assert after["hidden"]["kernel"].sharding == kernel.backend_layout
    losses += keras_training.train(later, second, range(2, 4))
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses, unbroken, rtol=1e-5)
