"""Keras models that tests make in a scope, their rules and their layouts."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from reshard import LayoutMap
from reshard.variables.lazy.keras_objects import variables_with_keras

RULES = {
    r".*d1\.kernel": ("data", "model"),
    r".*d1\.bias": ("model",),
    r"blk(_1)?\.lst\.0\.kernel": (None, "model"),
    r"blk(_1)?\.inner\.d2\.kernel": ("model",),
    r".*seed.*|drop.*": ("model",),
    r"out\.kernel": ("data",),  # an inner Sequential comes alive by itself, with paths of its own
    r"head\..*": ("model",),
}


class Inner(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.d2 = keras.layers.Dense(8)

    def call(self, x: Any) -> Any:
        return self.d2(x)


class Block(keras.layers.Layer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lst = [keras.layers.Dense(8), keras.layers.Dense(8)]
        self.by_name = {"x": keras.layers.Dense(8)}
        self.inner = Inner()

    def build(self, _: Any) -> None:
        self.w = self.add_weight(shape=(8,), name="scale", initializer="ones")

    def call(self, x: Any) -> Any:
        for layer in [*self.lst, self.by_name["x"], self.inner]:
            x = layer(x)
        return x * self.w


class Subclassed(keras.Model):
    def __init__(self, regularizer: Any = None) -> None:
        super().__init__()
        self.d1 = keras.layers.Dense(
            8,
            kernel_initializer=keras.initializers.RandomNormal(0.1, 0.7),
            kernel_regularizer=regularizer,
        )
        self.blk = Block()
        self.drop = keras.layers.Dropout(0.5)
        self.norm = keras.layers.BatchNormalization()
        self.head = keras.Sequential([keras.layers.Dense(4, name="out")])

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.drop(self.blk(self.d1(x)), training=training)
        return self.head(self.norm(x, training=training))


def subclassed(**options: Any) -> keras.Model:
    """Built by a symbolic call, in the scope."""
    model = Subclassed(**options)
    model(keras.Input((8,)))
    return model


DATA = np.ones((4, 8), np.float32)


def called(model: keras.Model) -> None:
    model(DATA)


def fitted(model: keras.Model) -> None:
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    model.fit(DATA, np.ones((4, 4)), verbose=0)


def predicted(model: keras.Model) -> None:
    assert model.predict(DATA, verbose=0).shape[0] == 4


def evaluated(model: keras.Model) -> None:
    model.compile("sgd", "mse")
    model.evaluate(DATA, np.ones((4, 4)), verbose=0)


def stepped(model: keras.Model) -> None:
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.train_on_batch(DATA, np.ones((4, 4)))


def called_symbolically(model: keras.Model) -> None:
    model(keras.Input((8,)))


FIRST_BUILDS = [called, fitted, predicted, evaluated, stepped, called_symbolically]


def functional() -> keras.Model:
    inputs = keras.Input((8,))
    x = keras.layers.Dense(8, name="d1")(inputs)
    x = keras.layers.Dropout(0.5, name="drop")(x)
    return keras.Model(inputs, Block(name="blk_1")(x))


def sequential() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(8, name="d1"),
            layers.Dropout(0.5, name="drop"),
            Block(name="blk_1"),
        ]
    )


BLOCK = {
    "lst.0.kernel": P(None, "model"), "lst.0.bias": P(), "lst.1.kernel": P(), "lst.1.bias": P(),
    "by_name.x.kernel": P(), "by_name.x.bias": P(), "inner.d2.kernel": P("model"), "inner.d2.bias": P(),
    "w": P(),
}  # fmt: skip


DENSE = {"d1.kernel": P("data", "model"), "d1.bias": P("model"), "drop.seed_generator.state": P()}


NAMED = {f"blk_1.{path}": spec for path, spec in BLOCK.items()}


NORM = {f"norm.{name}": P() for name in ("gamma", "beta", "moving_mean", "moving_variance")}


HEAD = {"head.out.kernel": P("data"), "head.out.bias": P()}


MODELS = {
    "subclassed": (subclassed, DENSE | {f"blk.{p}": s for p, s in BLOCK.items()} | NORM | HEAD),
    "functional": (functional, DENSE | NAMED),
    "sequential": (sequential, DENSE | NAMED),
}


every_model = pytest.mark.parametrize(("make", "specs"), MODELS.values(), ids=MODELS)


def made(make: Any, rules: LayoutMap) -> Any:
    with rules.scope():
        return make()


def specs_of(model: keras.Model) -> dict[str, P]:
    found = variables_with_keras(model)
    return {path: v.variable.value.sharding.spec for path, v in found.items()}


@keras.saving.register_keras_serializable("tests")
class Small(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.d1 = keras.layers.Dense(8)

    def call(self, x: Any) -> Any:
        return self.d1(x)
