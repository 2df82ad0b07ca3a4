"""Models of Keras, and their variables by the names that a file of weights has for them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


class Block(keras.layers.Layer):
    """A layer that holds others, in attributes and in a list."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.up = keras.layers.Dense(6, name="up")
        self.more = [keras.layers.Dense(5, name="one"), keras.layers.Dense(4, name="two")]

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.up.build(shape)
        self.more[0].build((None, 6))
        self.more[1].build((None, 5))

    def call(self, x: Any) -> Any:
        x = self.up(x)
        for layer in self.more:
            x = layer(x)
        return x


def nested_model() -> keras.Model:
    """A model within a model, bfloat16 beside float32, an embedding, normalization, and Adam with its variables."""
    inner = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, dtype="bfloat16"),
            keras.layers.LayerNormalization(),
        ]
    )
    words = keras.Input((2,), dtype="int32")
    x = keras.layers.Embedding(7, 8)(words)
    x = keras.layers.Flatten()(x)
    x = Block(name="block")(x)
    x = keras.layers.BatchNormalization()(x)
    x = inner(x)
    model = keras.Model(words, keras.layers.Dense(2, use_bias=False)(x))
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def randomized(model: keras.Model, seed: int) -> keras.Model:
    """The model with other values in every variable, those of the optimizer too."""
    rng = np.random.default_rng(seed)
    for variable in all_variables(model):
        values = rng.integers(0, 9, variable.shape)
        variable.assign(values.astype(variable.dtype))
    return model


def all_variables(model: keras.Model) -> list[Any]:
    """The weights, and the variables of the optimizer."""
    return [*model.weights, *model.optimizer.variables]


def values_of(model: keras.Model) -> list[bytes]:
    return [np.asarray(variable.value).tobytes() for variable in all_variables(model)]
