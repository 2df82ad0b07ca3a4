"""Eight simulated devices, set before anything imports jax, jax for Keras, and a terminal of known width."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.oracles.ask_tensorflow import TensorFlow

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ["COLUMNS"] = "120"


@pytest.fixture(scope="session")
def tensorflow() -> Iterator[TensorFlow]:
    """The real TensorFlow, started for the first test that asks for it."""
    from tests.oracles.ask_tensorflow import TensorFlow

    oracle = TensorFlow()
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``small_tree`` as the StandardCheckpointer saves it."""
    from tests.orbax_trees import save_standard, small_tree

    root = tmp_path_factory.mktemp("small")
    yield save_standard(root / "checkpoint", small_tree())
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def dirty_buffers() -> Iterator[None]:
    """Fills buffers with 0xAB when they are taken, so that bytes that nobody writes are never right by chance."""
    from reshard.engine.buffers import Arena

    take = Arena.take

    def dirty(arena: Arena, nbytes: int) -> memoryview:
        memory = take(arena, nbytes)
        memory[:] = 0xAB
        return memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "take", dirty)
        yield
