"""Runs inside the environment of TensorFlow: the Keras of dtensor, its LayoutMap and its scope."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras
from keras_models import model_of
from tensorflow.experimental import dtensor
from tf_keras.src.dtensor import layout_map as library

layers = tf_keras.layers


class Dtensor:
    """A LayoutMap over four CPUs, as a mesh of data=2 and model=2."""

    def __init__(self, rules: list[Any], has_mesh: bool = True) -> None:
        tf_keras.backend.experimental.enable_tf_random_generator()
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(1)
        self.mesh = mesh(4)
        self.map = library.LayoutMap(self.mesh if has_mesh else None)
        for key, axes in rules:
            self.map[key] = layout(axes, self.mesh)

    def made(self, make: Callable[[], Any]) -> Any:
        with self.map.scope():
            return make()

    def built(self, make: Callable[[], Any]) -> Any:
        """A model after its first call, which is on an input of this shape and one dimension more.

        So weights of the right rank come alive; that the call itself then cannot be computed does not matter.
        """
        model = self.made(make)
        alone = dtensor.copy_to_mesh(tf.zeros(8), dtensor.Layout.replicated(self.mesh, rank=1))
        try:
            model(alone)
        except Exception:
            if not model.built or any(map(library._is_lazy_init_variable, model.weights)):
                raise
        return model


def mesh(count: int) -> Any:
    return dtensor.create_mesh([("data", 2), ("model", count // 2)], devices=[f"CPU:{i}" for i in range(count)])  # fmt: skip


def layout(axes: list[str | None], on: Any) -> Any:
    return dtensor.Layout([axis or dtensor.UNSHARDED for axis in axes], on)


def axes_of(variable: Any) -> list[str | None]:
    return [None if axis == "unsharded" else axis for axis in variable.layout.sharding_specs]


def model_axes(kind: str, parts: list[Any], rules: list[Any]) -> Any:
    model = Dtensor(rules).built(lambda: model_of(tf_keras, kind, parts))
    return {
        f"{layer.name}/{weight.name.split('/')[-1].split(':')[0]}": axes_of(weight)
        for layer in model._flatten_layers()
        for weight in [*layer._trainable_weights, *layer._non_trainable_weights]
    }


class Tied(tf_keras.Model):
    """One weight under two names, and one under none."""

    def __init__(self, named: bool = True) -> None:
        super().__init__()
        weight = self.add_weight("w", (8,))
        if named:
            self.first = self.second = weight

    def call(self, x: Any) -> Any:
        return x


class OfDict(tf_keras.Model):
    """Layers in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name = {"x": layers.Dense(8)}

    def call(self, x: Any) -> Any:
        return self.by_name["x"](x)


class Regularized(layers.Layer):
    """A regularizer of a layer inside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.d = layers.Dense(8, kernel_regularizer="l2")

    def call(self, x: Any) -> Any:
        return self.d(x)


def dense(name: str) -> dict[str, Any]:
    return {"layer": "dense", "name": name}


def nested(outer: str, inner: str) -> dict[str, Any]:
    found: dict[str, Any] = model_axes(
        outer, [{"layer": inner, "name": "inner", "parts": [dense("d")]}], [["inner.d.kernel", ["data", None]]]
    )  # fmt: skip
    return found


def sequential(*made: Any) -> Any:
    return tf_keras.Sequential([tf_keras.Input((8,)), *made])


def many_before_an_error() -> list[bool]:
    """Whether the weights of the first and second layer came alive."""
    first, second = layers.Dense(8, name="first"), layers.Dense(8, name="second")
    with contextlib.suppress(ValueError, tf.errors.OpError):
        Dtensor([["second.bias", [None, "model"]]]).made(lambda: sequential(first, second))
    return [not library._is_lazy_init_variable(d.kernel) for d in (first, second)]


def other_devices() -> str:
    upstream = Dtensor([])
    upstream.map["d.kernel"] = layout([None, None], mesh(2))
    model = upstream.made(lambda: sequential(layers.Dense(8, name="d")))
    return str(len(model.layers[0].kernel.layout.mesh.local_device_ids()))


def kept() -> bool:
    layer = layers.Dense(8, name="d")
    found: list[Any] = []

    def make() -> Any:
        outputs = layer(inputs := tf_keras.Input((8,)))
        found.append(layer.kernel)
        return tf_keras.Model(inputs, outputs)

    Dtensor([]).made(make)
    return layer.kernel is found[0]


def tied() -> bool:
    model = Dtensor([["first", ["model"]]]).built(Tied)
    return model.first is model.second


def pair_of_keys() -> list[Any]:
    found = Dtensor([["d.*", ["data"]], [".*bias", ["model"]]]).map["d.bias"]
    return list(found.sharding_specs)


CASES: dict[str, Callable[[], Any]] = {
    "key `kernel`, path `d1.kernel`": lambda: Dtensor([["kernel", ["data"]]]).map["d1.kernel"],
    "two keys that match a path": pair_of_keys,
    "where a variable lies": lambda: (
        type(Dtensor([]).made(lambda: sequential(layers.Dense(8))).layers[0].kernel.layout).__name__
    ),
    "a weight that comes to life": kept,
    "a weight under two attributes": tied,
    "a weight under no attribute": lambda: len(
        Dtensor([]).built(lambda: Tied(named=False)).weights
    ),
    "random state, with a key `.*`": lambda: len(
        Dtensor([[".*", ["model"]]]).made(lambda: sequential(layers.Dropout(0.5))).layers
    ),
    "nothing matches, and the map has no mesh": lambda: len(
        Dtensor([], has_mesh=False).made(lambda: sequential(layers.Dense(8))).weights
    ),
    "a layout over other devices than the default mesh": other_devices,
    "an error at one of many weights": many_before_an_error,
    "a subclassed model inside a subclassed one": lambda: nested("model", "model"),
    "a subclassed model inside a Functional one": lambda: nested("functional", "model"),
    "a Sequential model without an input inside a Functional one": lambda: nested(
        "functional", "unknown"
    ),
    "layers in a dict, in a subclassed model": lambda: len(Dtensor([]).built(OfDict).weights),
    "a regularizer of a layer inside a layer": lambda: len(
        Dtensor([]).made(lambda: sequential(Regularized())).losses
    ),
}
