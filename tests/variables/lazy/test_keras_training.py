"""Keras models made in a scope train, and are saved and loaded, as without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.variables.lazy.keras_models import (
    DATA,
    RULES,
    Small,
    Subclassed,
    fitted,
    functional,
    made,
)
from tests.variables.models import layouts


def test_regularization_losses_are_of_the_values_that_came_to_life() -> None:
    model = made(lambda: Subclassed(regularizer="l2"), layouts(**RULES))
    fitted(model)
    (loss,) = model.losses
    assert float(loss) == pytest.approx(0.01 * float((np.asarray(model.d1.kernel) ** 2).sum()))


def test_it_trains_as_without_the_scope_and_its_optimizer_state_is_in_shards_too() -> None:
    def compiled() -> keras.Model:
        model = Subclassed()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        return model

    def trained(make: Any) -> tuple[keras.Model, list[float]]:
        keras.utils.set_random_seed(1)
        model = make(compiled)
        history = model.fit(np.ones((16, 8)), np.ones((16, 4)), epochs=3, verbose=0).history
        return model, history["loss"]

    model, losses = trained(lambda make: made(make, layouts(**RULES)))
    plain, expected = trained(lambda make: make())
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0]
    assert np.asarray(model.norm.moving_mean).any()
    np.testing.assert_allclose(model.norm.moving_mean, plain.norm.moving_mean, rtol=1e-3, atol=1e-6)
    assert np.asarray(model.drop.seed_generator.state)[1] > 0
    assert model.d1.kernel.value.sharding.spec == P("data", "model")
    slots = model.optimizer.variables[2:]  # after iterations and learning rate, two per variable
    assert len(slots) == 2 * len(model.trainable_variables)
    for index, variable in enumerate(model.trainable_variables):
        for slot in slots[2 * index : 2 * index + 2]:
            assert slot.value.sharding.is_equivalent_to(variable.value.sharding, slot.ndim)


def test_using_it_inside_the_scope() -> None:
    with layouts(**RULES).scope():
        model = functional()
        model.layers[1].bias.assign(np.arange(8))
        assert model(np.ones((2, 8))).shape == (2, 8)
    assert np.array_equal(model.layers[1].bias, np.arange(8))


def test_trainable_flags_stay() -> None:
    def frozen() -> keras.Model:
        model = Subclassed()
        model.d1.trainable = False
        return model

    model, plain = made(frozen, layouts(**RULES)), frozen()
    fitted(model)
    fitted(plain)
    assert not model.d1.kernel.trainable
    for ours, theirs in (
        (model.trainable_variables, plain.trainable_variables),
        (model.non_trainable_variables, plain.non_trainable_variables),
        (model.non_trainable_weights, plain.non_trainable_weights),
    ):
        assert [v.name for v in ours] == [v.name for v in theirs]


@pytest.mark.parametrize("make", [lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="d1")]), Small], ids=["sequential", "subclassed"])  # fmt: skip
def test_saved_and_loaded(tmp_path: Path, make: Any) -> None:
    rules = layouts(**RULES)
    model = made(make, rules)
    expected = model.predict(DATA, verbose=0)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    with rules.scope():
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        fresh = make()
    fresh.predict(DATA, verbose=0)
    fresh.load_weights(tmp_path / "m.weights.h5")
    copied = keras.models.clone_model(model) if isinstance(model, keras.Sequential) else loaded
    assert copied.predict(DATA, verbose=0).shape == expected.shape
    for other in (loaded, fresh):
        np.testing.assert_allclose(other.predict(DATA, verbose=0), expected, rtol=1e-6)
        kernel = next(v for v in other.variables if v.name == "kernel")
        assert kernel.value.sharding.spec == P("data", "model")
