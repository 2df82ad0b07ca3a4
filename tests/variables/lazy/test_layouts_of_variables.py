"""``variable.layout``, and the warning of keys that match no variable."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from reshard import DeviceMesh, LayoutMap, LayoutWarning, TensorLayout, layout_map_scope
from reshard.variables import Variable, create, materialize
from tests.variables.models import mesh

DATA = np.zeros((2, 10), np.float32)


class SubclassModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.d1 = keras.layers.Dense(16)
        self.d2 = keras.layers.Dense(8)

    def call(self, inputs: Any) -> Any:
        return self.d2(self.d1(inputs))


def functional() -> Any:
    inputs = keras.Input((10,), batch_size=2)
    hidden = keras.layers.Dense(16, name="d1")(inputs)
    return keras.Model(inputs, keras.layers.Dense(8, name="d2")(hidden))


def sequential() -> Any:
    layers = [keras.layers.Dense(16, name="d1"), keras.layers.Dense(8, name="d2")]
    return keras.Sequential([keras.Input((10,)), *layers])


def four_layouts(on: DeviceMesh) -> dict[str, TensorLayout]:
    axes: dict[str, Any] = {
        "d1.kernel": (None, "model"),
        "d1.bias": ("model",),
        "d2.kernel": ("model", None),
        "d2.bias": (None,),
    }
    return {name: TensorLayout(a, on) for name, a in axes.items()}


@pytest.mark.parametrize("make", [SubclassModel, functional, sequential])
def test_a_keras_variable_has_the_layout_of_its_key(make: Any) -> None:
    layouts = four_layouts(mesh())
    layout_map = LayoutMap(mesh=mesh())
    layout_map.update(layouts)
    with warnings.catch_warnings(action="error"), layout_map_scope(layout_map):
        model = make()
    with warnings.catch_warnings(action="error"):
        model(DATA)
    d1, d2 = model.layers[-2:]
    found = {"d1.kernel": d1.kernel.layout, "d1.bias": d1.bias.layout}
    assert found | {"d2.kernel": d2.kernel.layout, "d2.bias": d2.bias.layout} == layouts


def test_a_variable_without_a_key_has_a_layout_of_one_none_a_dimension() -> None:
    with LayoutMap(mesh=mesh()).scope():
        model, variable = sequential(), Variable(jnp.zeros, (8,))
    assert variable.layout is None
    materialize({"v": variable})
    for layout, rank in ((model.layers[0].kernel.layout, 2), (variable.layout, 1)):
        wanted = TensorLayout((None,) * rank, mesh())
        assert layout == wanted
        assert hash(layout) == hash(wanted)
    assert Variable(jnp.zeros, (8,)).layout is None


def told(act: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    assert all(w.category is LayoutWarning and w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


def with_keys(*keys: str) -> LayoutMap:
    layout_map = LayoutMap(mesh())
    layout_map.update(dict.fromkeys(keys, (None,)))
    return layout_map


def test_a_key_that_matches_no_weight_is_told_when_the_scope_ends() -> None:
    layout_map = with_keys("d1.bias", "d1/kernel")

    def act() -> None:
        with layout_map.scope():
            sequential()

    assert told(act) == [
        "the layout map's key 'd1/kernel' matches no variable; the nearest name is 'd1.kernel': write 'd1\\\\.kernel'"
    ]
    assert told(act) == []


def test_a_key_is_not_told_before_the_model_that_was_made_is_built() -> None:
    layout_map, models = with_keys("d1.bias", "other"), []

    def make() -> None:
        with layout_map.scope():
            models.extend([SubclassModel(), SubclassModel()])

    assert told(make) == []
    assert told(lambda: models[0](DATA)) == []
    assert told(lambda: models[1](DATA)) == ["the layout map's key 'other' matches no variable"]


def test_plain_variables_and_create_tell_too() -> None:
    layout_map, made = with_keys("w", "nothing"), []

    def make() -> None:
        with layout_map.scope():
            made.append({"w": Variable(jnp.zeros, (8,))})

    assert told(make) == []
    assert told(lambda: materialize(made[0])) == [
        "the layout map's key 'nothing' matches no variable"
    ]
    other = with_keys("^b$")

    def at_once() -> None:
        with other.scope():
            create(lambda: {"a": {"b": jnp.zeros(8)}})

    assert told(at_once) == ["the layout map's key '^b$' matches no variable"]


def test_an_empty_scope_and_a_deleted_model_tell_nothing() -> None:
    layout_map = with_keys("d1.bias", "typo")

    def make() -> None:
        with layout_map.scope():
            SubclassModel()

    assert told(make) == []
