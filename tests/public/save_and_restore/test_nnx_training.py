"""A flax NNX model with an optax state, trained on one mesh, saved, restored on another and trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import reshard
from reshard import DeviceMesh, LayoutMap
from reshard.variables import create
from tests.equal import assert_same_trees

pytestmark = pytest.mark.xdist_group("nnx-training")

DEVICES = jax.devices()
FEATURES, HIDDEN, BATCH = 8, 32, 16


class Net(nnx.Module):
    """Two layers, with running means and dropout, so that there is state besides weights."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
        self.normal = nnx.BatchNorm(HIDDEN, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.dropout(self.normal(nnx.relu(self.hidden(x)))))


def layouts_on(mesh: DeviceMesh) -> LayoutMap:
    """Kernels by columns then by rows over the axis ``model``, their optimizer's moments alike."""
    layouts = LayoutMap(mesh)
    layouts[r"hidden\.kernel"] = (None, "model")
    layouts[r"(hidden|normal)\.(bias|scale|mean|var)"] = ("model",)
    layouts[r"out\.kernel"] = ("model", None)
    return layouts


FIRST = layouts_on(DeviceMesh((4, 2), ("data", "model"), DEVICES))
SECOND = layouts_on(DeviceMesh((1, 4), ("data", "model"), DEVICES[:3:-1]))
"""Another shape, fewer devices, in another order."""


def new_training(layouts: LayoutMap, seed: int = 0) -> tuple[Net, nnx.Optimizer[Net]]:
    """The model and its optimizer, with every array where the map says."""
    with layouts.scope():
        model = create(lambda: Net(nnx.Rngs(seed)))
        transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05))
        return model, create(lambda: nnx.Optimizer(model, transform, wrt=nnx.Param))


@nnx.jit
def train_step(model: Net, optimizer: nnx.Optimizer[Net], x: Any, y: Any) -> jax.Array:
    def loss(model: Net) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def train(model: Net, optimizer: nnx.Optimizer[Net], layouts: LayoutMap, steps: Iterable[int]) -> list[float]:  # fmt: skip
    """The loss of each step; a step's batch depends on its number alone."""
    losses = []
    for step in steps:
        random = np.random.default_rng(step)
        x = random.normal(size=(BATCH, FEATURES)).astype(np.float32)
        y = random.integers(0, 4, BATCH).astype(np.int32)
        batch = [
            reshard.distribute_tensor(a, reshard.TensorLayout(("data",), layouts.device_mesh))
            for a in (x, y)
        ]
        losses.append(float(train_step(model, optimizer, *batch)))
    return losses


def state(training: tuple[Net, nnx.Optimizer[Net]]) -> dict[str, Any]:
    return {"model": nnx.state(training[0]), "optimizer": nnx.state(training[1])}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoint after two steps, what was saved, and the losses of the run, which never stopped."""
    path = tmp_path_factory.mktemp("trained") / "checkpoint"
    training = new_training(FIRST)
    train(*training, FIRST, range(2))
    tree = state(training)
    expected = jax.tree.map(lambda leaf: leaf.copy(), tree)
    handle = reshard.save(path, tree, wait=False)
    losses = train(*training, FIRST, range(2, 4))
    handle.wait()
    return path, expected, losses


def test_training_continues_where_it_stopped(saved):
    """Sums over the batch are split differently, so losses may differ in the last bits of float32."""
    path, expected, unbroken = saved
    training = new_training(SECOND, seed=1)
    target = state(training)
    restored = reshard.restore(path, like=target)
    assert_same_trees(restored, expected)
    assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding == b.sharding, restored, target))
    kernel = restored["model"]["hidden"]["kernel"][...]
    assert kernel.sharding.shard_shape(kernel.shape) == (FEATURES, HIDDEN // 4)

    for holder, part in zip(training, ("model", "optimizer"), strict=True):
        nnx.update(holder, restored[part])
    np.testing.assert_allclose(train(*training, SECOND, range(2, 4)), unbroken, rtol=1e-5)


def test_an_abstract_model_is_a_target(saved):
    """Nothing is computed to restore: shapes and shardings are enough."""
    path, expected, _ = saved
    abstract = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    mesh = DeviceMesh((8,), ("model",), DEVICES)
    layouts = LayoutMap(mesh)
    layouts["model/hidden/kernel"] = (None, "model")
    tree = {"model": nnx.state(abstract)}
    restored = reshard.restore(path, tree, layout=layouts, unexpected="ignore")
    assert_same_trees(restored, {"model": expected["model"]})
    kernel = restored["model"]["hidden"]["kernel"][...]
    assert kernel.sharding.shard_shape(kernel.shape) == (FEATURES, HIDDEN // 8)
    nnx.merge(nnx.graphdef(abstract), restored["model"])
