"""When the variables of Keras models get their values, and the errors before."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from reshard import VariableError
from reshard.variables import materialize
from tests.variables.lazy.keras_models import (
    DATA,
    RULES,
    Subclassed,
    functional,
    made,
)
from tests.variables.models import layouts


def test_layers_that_the_first_build_does_not_reach_come_alive_later() -> None:
    class Lazy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d1 = keras.layers.Dense(8)
            self.late = [keras.layers.Dense(8)]

        def build(self, _: Any) -> None:  # builds none of its layers
            self.w = self.add_weight(shape=(8,), name="w")

        def call(self, x: Any, deep: bool = False) -> Any:
            x = self.d1(x) * self.w
            return self.late[0](x) if deep else x

    model = made(
        Lazy, layouts(**{"d1.kernel": ("data",), "late.0.kernel": ("model",), "w": ("model",)})
    )
    model(DATA)
    assert model.w.value.sharding.spec == P("model")
    assert model.d1.kernel.value.sharding.spec == P("data")
    model(DATA, deep=True)
    assert model.late[0].kernel.value.sharding.spec == P("model")


def test_a_model_whose_call_cannot_be_traced() -> None:
    """Keras then builds it while it computes, layer by layer."""

    class Eager(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.d1 = keras.layers.Dense(8)
            self.d2 = keras.layers.Dense(8)

        def call(self, x: Any) -> Any:
            x = self.d1(x)
            return self.d2(x) if float(np.asarray(x).sum()) > -1e9 else x

    model = made(Eager, layouts(**{"d1.kernel": ("data",), "d2.kernel": ("model",)}))
    assert model(DATA).shape == (4, 8)
    assert model.d1.kernel.value.sharding.spec == P("data")
    assert model.d2.kernel.value.sharding.spec == P("model")


def test_a_sequential_model_that_grows() -> None:
    model = made(lambda: keras.Sequential([keras.Input((8,))]), layouts(**{"d.kernel": ("data",), "e.kernel": ("model",)}))  # fmt: skip
    model.add(keras.layers.Dense(8, name="d"))
    assert model.layers[0].kernel.value.sharding.spec == P("data")
    model.add(keras.layers.Dense(8, name="e"))
    assert model.layers[1].kernel.value.sharding.spec == P("model")


def test_under_jit_it_must_be_built_before() -> None:
    model = made(Subclassed, layouts(**RULES))
    with pytest.raises(
        VariableError, match=r"makes its weights while jax traces a function .* build it before"
    ):
        jax.jit(lambda x: model(x))(DATA)


def test_a_model_in_a_plain_object() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.models = [functional()]

    trainer = made(Trainer, layouts(**{r"d1\.kernel": ("data",)}))
    assert materialize(trainer) is trainer  # nothing is left to do
    assert trainer.models[0].layers[1].kernel.value.sharding.spec == P("data")


def test_reading_a_lazy_variable_says_what_to_do() -> None:
    with layouts(**RULES).scope():
        dense = keras.layers.Dense(8, name="d1")
        dense.build((8, 8))
    expected = (
        r"'d1/kernel' \(shape \[8, 8\], float32\) was made in a layout map's scope and has no value yet; "
        r"build the model that contains it first, .* or call reshard\.variables\.materialize on the object that contains it"
    )
    for use in (
        lambda: dense.kernel.value, lambda: dense(DATA), lambda: dense.kernel.numpy(), lambda: dense.kernel + 1,
        lambda: dense.kernel.assign_add(np.ones((8, 8))),
    ):  # fmt: skip
        with pytest.raises(VariableError, match=expected):
            use()
    materialize({"d1": dense})
    assert dense.kernel.value.sharding.spec == P("data", "model")


def test_materialising_what_came_alive_or_cannot_yet() -> None:
    model = made(functional, layouts(**RULES))
    assert materialize(model) is model
    unbuilt = made(lambda: keras.Sequential([keras.layers.Dense(4)]), layouts())
    with pytest.raises(
        VariableError,
        match=r"'sequential\w*' is not built: dense\w* would make weights later, .*; call it on a",
    ):
        materialize(unbuilt)
    plain = functional()
    with pytest.raises(VariableError, match="variables of this Functional is lazy"):
        materialize(plain)


def test_a_model_that_is_built_only_in_part_is_refused() -> None:
    with layouts().scope():
        model = Subclassed()
        model.scale = model.add_weight(shape=(8,), name="scale")
    with pytest.raises(VariableError, match="is not built: d1, blk, norm, head would make weights"):
        materialize([model])
    assert model.scale._value is None
