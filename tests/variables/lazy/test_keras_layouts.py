"""Keras models made in a scope: each variable has the layout of its path, in shards."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from reshard import LayoutMap
from reshard.variables.lazy.keras_objects import variables_with_keras
from tests.variables.lazy.keras_models import (
    DATA,
    FIRST_BUILDS,
    MODELS,
    RULES,
    Subclassed,
    called,
    every_model,
    fitted,
    functional,
    made,
    predicted,
    specs_of,
)
from tests.variables.models import layouts, mesh


@every_model
def test_variables_have_the_layouts_of_their_paths(make: Any, specs: dict[str, P]) -> None:
    assert specs_of(made(make, layouts(**RULES))) == specs


@pytest.mark.parametrize(
    ("build", "inside"),
    [
        *((build, False) for build in FIRST_BUILDS),
        (called, True),
        (fitted, True),
        (predicted, True),
    ],
)
def test_a_first_build_inside_or_outside_of_the_scope(build: Any, inside: bool) -> None:
    keras.utils.set_random_seed(1)
    with layouts(**RULES).scope():
        model = Subclassed()
        if inside:
            build(model)
    if not inside:
        build(model)
    assert specs_of(model) == MODELS["subclassed"][1]
    for variable in (v for metric in model.metrics for v in metric.variables):
        assert variable.value.is_fully_replicated
    keras.utils.set_random_seed(1)
    plain = Subclassed()
    plain(keras.Input((8,)))
    for ours, theirs in zip(model.trainable_variables, plain.trainable_variables, strict=True):
        assert np.asarray(ours.value).tobytes() == np.asarray(theirs.value).tobytes(), ours.path


@every_model
def test_every_bit_is_as_without_the_scope(make: Any, specs: dict[str, P]) -> None:
    keras.utils.set_random_seed(1)
    sharded = made(make, layouts(**RULES))
    keras.utils.set_random_seed(1)
    plain = make()
    assert len(sharded.variables) == len(plain.variables) == len(specs)
    for ours, theirs in zip(sharded.variables, plain.variables, strict=True):
        assert ours.name == theirs.name
        assert np.asarray(ours.value).tobytes() == np.asarray(theirs.value).tobytes(), ours.path


@every_model
def test_an_empty_map_replicates_everything(make: Any, specs: dict[str, P]) -> None:
    variables = made(make, LayoutMap(mesh())).variables
    assert len(variables) == len(specs)
    assert all(v.value.is_fully_replicated and len(v.value.devices()) == 8 for v in variables)


def test_no_value_exists_before_the_path_is_known() -> None:
    with layouts(**RULES).scope():
        dense = keras.layers.Dense(8, name="d1")
        outputs = dense(inputs := keras.Input((8,)))
        assert (dense.kernel.shape, dense.kernel._value) == ((8, 8), None)
        keras.Model(inputs, outputs)
        assert dense.kernel.value.sharding.spec == P("data", "model")


def test_a_device_holds_its_shard_and_no_more() -> None:
    kernel = made(functional, layouts(**RULES)).layers[1].kernel.value
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(4, 2)}


def test_a_shared_layer_has_its_first_path() -> None:
    def tied() -> keras.Model:
        model = Subclassed()
        model.again = model.d1
        model(keras.Input((8,)))
        return model

    found = variables_with_keras(made(tied, layouts(**RULES)))
    assert [path for path in found if path.startswith(("d1", "again"))] == ["d1.kernel", "d1.bias"]


def test_a_layer_that_two_models_share_has_its_path_in_the_first() -> None:
    with layouts(**{r"shared\.kernel": ("data",), r"late\..*": ("model",)}).scope():
        dense = keras.layers.Dense(8, name="shared")
        inputs = keras.Input((8,))
        first = keras.Model(inputs, dense(inputs))
        second = keras.Model(inputs, keras.layers.Dense(8, name="late")(dense(inputs)))
    assert first.layers[1] is second.layers[1] is dense
    assert dense.kernel.value.sharding.spec == P("data")
    assert second.layers[2].kernel.value.sharding.spec == P("model")


def test_inner_models_keep_inner_paths() -> None:
    """As with dtensor; a subclassed model inside another has the path of its attributes."""

    class Outer(keras.Model):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def call(self, x: Any) -> Any:
            return self.inner(x)

    class Leaf(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d = keras.layers.Dense(8)

        def call(self, x: Any) -> Any:
            return self.d(x)

    inputs = keras.Input((8,))
    inner: dict[str, Any] = {
        "functional": (lambda: keras.Model(inputs, keras.layers.Dense(8, name="d")(inputs)), P("data")),
        "known": (lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="d")]), P("data")),
        "unknown": (lambda: keras.Sequential([keras.layers.Dense(8, name="d")]), P("data")),
        "subclassed": (Leaf, P("model")),
    }  # fmt: skip
    rules = layouts(**{r"d\.kernel": ("data",), r"inner\.d\.kernel": ("model",)})
    for make, spec in inner.values():
        model = made(lambda make=make: Outer(make()), rules)
        fitted_on = model.predict(DATA, verbose=0)
        assert fitted_on.shape == (4, 8)
        kernel = next(v for v in model.variables if v.name == "kernel")
        assert kernel.value.sharding.spec == spec
    with rules.scope():
        keras.Model(inputs, (leaf := Leaf())(inputs))  # its first build is its own
    assert leaf.d.kernel.value.sharding.spec == P("data")


def test_a_layer_made_before_the_scope_is_laid_out_with_its_model() -> None:
    dense = keras.layers.Dense(8, name="d1")
    dense.build((None, 8))
    before = np.asarray(dense.kernel)
    inputs = keras.Input((8,))
    made(lambda: keras.Model(inputs, dense(inputs)), layouts(**RULES))
    assert dense.kernel.value.sharding.spec == P("data", "model")
    np.testing.assert_array_equal(dense.kernel, before)


def test_weights_that_were_set_before_are_laid_out_too() -> None:
    kernel = np.arange(64, dtype="float32").reshape(8, 8)
    with layouts(**RULES).scope():
        dense = keras.layers.Dense(8, name="d1")
        outputs = dense(inputs := keras.Input((8,)))
        dense.kernel.assign(kernel)
        keras.Model(inputs, outputs)
    assert np.array_equal(dense.kernel.value, kernel)
    assert dense.kernel.value.sharding.spec == P("data", "model")
    assert dense.bias.value.sharding.spec == P("model")
