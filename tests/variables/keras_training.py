"""A small Keras 3 model, placed by a LayoutMap of this project, that trains step by step.

Everything is seeded, so that two runs of the same steps see the same numbers whatever their mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from reshard import DeviceMesh, LayoutMap

FEATURES, HIDDEN, CLASSES, BATCH = 8, 16, 8, 16


def layouts_on(mesh: DeviceMesh) -> LayoutMap:
    """Kernels by columns then by rows over the axis ``model``; the rest is replicated."""
    layouts = LayoutMap(mesh)
    layouts["hidden/kernel"] = (None, "model")
    layouts["hidden/bias"] = ("model",)
    layouts["out/kernel"] = ("model", None)
    return layouts


def parallel(layouts: LayoutMap) -> keras.distribution.ModelParallel:
    """Keras' distribution that follows the map; batches are split over the axis ``data``."""
    return keras.distribution.ModelParallel(layout_map=layouts.to_keras(), batch_dim_name="data")


def new_model(layouts: LayoutMap, seed: int = 0) -> keras.Model:
    """A compiled model with its optimizer's variables, all placed by the map."""
    keras.utils.set_random_seed(seed)
    with parallel(layouts).scope():
        inputs = keras.Input((FEATURES,))
        hidden = keras.layers.Dense(HIDDEN, activation="relu", name="hidden")(inputs)
        normal = keras.layers.BatchNormalization(name="normal")(hidden)
        outputs = keras.layers.Dense(CLASSES, name="out")(normal)
        model = keras.Model(inputs, outputs, name="classifier")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(0.05, name="adam"), loss=loss)
        model.optimizer.build(model.trainable_variables)
    return model


def train(model: keras.Model, layouts: LayoutMap, steps: Iterable[int]) -> list[float]:
    """The loss of each step; a step's batch depends on its number alone."""
    losses = []
    with parallel(layouts).scope():
        for step in steps:
            random = np.random.default_rng(step)
            features = random.normal(size=(BATCH, FEATURES)).astype(np.float32)
            classes = random.integers(0, CLASSES, BATCH)
            model.reset_metrics()
            losses.append(float(model.train_on_batch(features, classes)))
    return losses


def variables(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Every variable that a checkpoint needs, the optimizer's too, by its path."""
    for variable in (*model.variables, *model.optimizer.variables):
        yield variable.path, variable


def state(model: keras.Model) -> dict[str, Any]:
    """The values of all variables as a tree to save: nested dicts along the paths."""
    tree: dict[str, Any] = {}
    for path, variable in variables(model):
        *folders, name = path.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = variable.value
    return tree


def load(model: keras.Model, tree: dict[str, Any]) -> None:
    """Give every variable its value of the tree; each keeps the layout that it has."""
    for path, variable in variables(model):
        value: Any = tree
        for part in path.split("/"):
            value = value[part]
        variable.assign(value)


def bits(tree: Any) -> Any:
    """The tree with the bytes of each array in its place."""
    return jax.tree.map(lambda value: np.asarray(value).tobytes(), tree)
