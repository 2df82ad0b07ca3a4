"""A Keras 3 model trained on one mesh, saved, restored on another and trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import reshard
from reshard import DeviceMesh, LayoutMap
from tests.variables import keras_training

DEVICES = jax.devices()
FIRST = keras_training.layouts_on(DeviceMesh((4, 2), ("data", "model"), DEVICES))
SECOND = keras_training.layouts_on(DeviceMesh((2, 4), ("data", "model"), DEVICES[::-1]))
FEWER = keras_training.layouts_on(DeviceMesh((2, 2), ("data", "model"), DEVICES[:4]))


@pytest.fixture(scope="module")
def unbroken() -> list[float]:
    """The losses of the run that never stopped."""
    return keras_training.train(keras_training.new_model(FIRST), FIRST, range(4))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, unbroken: list[float]) -> tuple[Path, Any]:
    """The checkpoint after two steps, and the bytes of every tensor that was saved."""
    path = tmp_path_factory.mktemp("trained") / "checkpoint"
    model = keras_training.new_model(FIRST)
    assert keras_training.train(model, FIRST, range(2)) == unbroken[:2]
    tree = keras_training.state(model)
    reshard.save(path, tree)
    return path, keras_training.bits(tree)


@pytest.mark.parametrize("layouts", [SECOND, FEWER], ids=["other order", "fewer devices"])
def test_training_continues_where_it_stopped(
    saved: tuple[Path, Any], unbroken: list[float], layouts: LayoutMap
) -> None:
    """Sums over the batch are split differently, so losses may differ in the last bits of float32."""
    path, expected = saved
    model = keras_training.new_model(layouts, seed=1)
    fresh = keras_training.state(model)
    restored = reshard.restore(path, like=fresh)
    assert keras_training.bits(fresh) != expected
    assert keras_training.bits(restored) == expected
    assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding == b.sharding, restored, fresh))

    keras_training.load(model, restored)
    assert keras_training.bits(keras_training.state(model)) == expected
    losses = keras_training.train(model, layouts, range(2, 4))
    np.testing.assert_allclose(losses, unbroken[2:], rtol=1e-5)


def test_the_map_of_the_model_places_what_is_restored(saved: tuple[Path, Any]) -> None:
    path, expected = saved
    restored = reshard.restore(path, layout=SECOND, select=["^(hidden|out)/"])
    assert set(restored) == {"hidden", "out"}
    for layer, tensors in restored.items():
        for name, array in tensors.items():
            layout = SECOND[f"{layer}/{name}"]
            assert np.asarray(array).tobytes() == expected[layer][name]
            assert layout is None or array.sharding.is_equivalent_to(
                layout.backend_layout, array.ndim
            )
    assert SECOND["out/bias"] is None
    assert restored["out"]["bias"].sharding.is_fully_replicated
