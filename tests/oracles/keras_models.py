"""Models from a description, for Keras 3 here and for the Keras of dtensor in the TensorFlow process.

A part is ``{"name": …, "layer": "dense" | "norm" | "drop"}``, ``{"layer": "same", "name": …, "of": …}`` for a
layer that is used again, or one of ``block`` (a layer that holds others), ``list``, ``functional``,
``sequential``, ``unknown`` (Sequential without an input) and ``model`` (a subclassed model), with
``parts``. Every layer has a name of its own; each takes and gives 8 numbers. Nothing of reshard is imported.
"""

from __future__ import annotations

from typing import Any

SIZE = 8


def model_of(keras: Any, kind: str, parts: list[dict[str, Any]]) -> Any:
    """A model of a kind; ``model`` is a subclassed one, which is not built yet."""
    return _made(keras, {"layer": kind, "name": "root", "parts": parts}, {})


def _made(keras: Any, part: dict[str, Any], known: dict[str, Any]) -> Any:
    kind, name, layers = part["layer"], part["name"], keras.layers
    if kind == "same":
        return known[part["of"]]
    if kind == "dense":
        found = layers.Dense(SIZE, name=name)
    elif kind == "norm":
        found = layers.BatchNormalization(name=name)
    elif kind == "drop":
        found = layers.Dropout(0.5, name=name)
    else:
        found = _KINDS[kind](keras, name, part["parts"], known)
    known[name] = found
    return found


def _functional(keras: Any, name: str, parts: list[dict[str, Any]], known: dict[str, Any]) -> Any:
    inputs = keras.Input((SIZE,))
    outputs = inputs
    for part in parts:
        outputs = _made(keras, part, known)(outputs)
    return keras.Model(inputs, outputs, name=name)


def _sequential(keras: Any, name: str, parts: list[dict[str, Any]], known: dict[str, Any]) -> Any:
    made = [_made(keras, part, known) for part in parts]
    return keras.Sequential([keras.Input((SIZE,)), *made], name=name)


def _unknown(keras: Any, name: str, parts: list[dict[str, Any]], known: dict[str, Any]) -> Any:
    return keras.Sequential([_made(keras, part, known) for part in parts], name=name)


def _holder(base: Any) -> Any:
    """A class whose attributes are the parts, called one after another."""

    class Holder(base):
        def __init__(self, keras: Any, name: str, parts: Any, known: Any) -> None:
            super().__init__(name=name)
            self.order = [part["name"] for part in parts]
            for part in parts:
                made = (
                    [_made(keras, inner, known) for inner in part["parts"]]
                    if part["layer"] == "list"
                    else _made(keras, part, known)
                )
                setattr(self, part["name"], made)

        def call(self, x: Any) -> Any:
            for name in self.order:
                made = getattr(self, name)
                for layer in made if hasattr(made, "__iter__") else [made]:
                    x = layer(x)
            return x

    return Holder


def _block(keras: Any, name: str, parts: list[dict[str, Any]], known: dict[str, Any]) -> Any:
    return _holder(keras.layers.Layer)(keras, name, parts, known)


def _model(keras: Any, name: str, parts: list[dict[str, Any]], known: dict[str, Any]) -> Any:
    return _holder(keras.Model)(keras, name, parts, known)


_KINDS = {
    "functional": _functional, "sequential": _sequential, "unknown": _unknown, "block": _block,
    "model": _model,
}  # fmt: skip
