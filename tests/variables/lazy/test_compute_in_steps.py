"""Computing in shards gives the very bits of eager jax, and no device computes more than its part."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from reshard.variables.lazy.initial_value import compute_in_steps
from tests.variables.models import mesh

INITIALIZERS = {
    "normal": jax.nn.initializers.normal(0.02),
    "truncated": jax.nn.initializers.truncated_normal(0.02),
    "lecun": jax.nn.initializers.lecun_normal(),
    "glorot": jax.nn.initializers.glorot_uniform(),
    "he": jax.nn.initializers.he_normal(),
    "uniform": jax.nn.initializers.uniform(0.1),
    "variance": jax.nn.initializers.variance_scaling(1.7, "fan_out", "normal"),
    "orthogonal": jax.nn.initializers.orthogonal(0.3),
    "affine": lambda key, shape, dtype: jax.random.normal(key, shape, dtype) * 0.037 + 0.51,
    "division": lambda key, shape, dtype: jax.random.uniform(key, shape, dtype) / 0.8796 / 3,
    "sine": lambda key, shape, dtype: (
        jnp.sin(jax.random.normal(key, shape, dtype) * 3 + 1) * 1.3 - 0.2
    ),
    "reshaped": lambda key, shape, dtype: jax.random.normal(key, shape[::-1], dtype).T.reshape(
        shape
    ),
    "gathered": lambda key, shape, dtype: jax.random.normal(key, shape, dtype)[
        jnp.arange(shape[0])
    ],
}


def sharding(*axes: object) -> NamedSharding:
    return NamedSharding(mesh().backend_mesh, PartitionSpec(*axes))


def in_shards(function: Any, *axes: object) -> jax.Array:
    return compute_in_steps(function, lambda _: [sharding(*axes)])[1][0]


AXES: list[tuple[Any, ...]] = [("data",), ("model", "data"), (None, ("data", "model")), (None, "model"), ()]  # fmt: skip


@pytest.mark.parametrize(("name", "axes"), list(zip(INITIALIZERS, cycle(AXES), strict=False)))
def test_every_bit_is_that_of_eager_jax(name: str, axes: tuple[Any, ...]) -> None:
    key = jax.random.key(7)

    def made() -> jax.Array:
        return INITIALIZERS[name](key, (64, 32), jnp.float32)

    sharded, eager = in_shards(made, *axes), made()
    assert sharded.sharding == sharding(*axes)
    assert np.asarray(sharded).tobytes() == np.asarray(eager).tobytes()


@pytest.mark.parametrize("name", ["lecun", "normal", "affine"])
def test_every_bit_of_bfloat16_too(name: str) -> None:
    def made() -> jax.Array:
        return INITIALIZERS[name](jax.random.key(5), (64, 32), jnp.bfloat16)

    assert np.asarray(in_shards(made, "data")).tobytes() == np.asarray(made()).tobytes()


def test_compiling_it_whole_would_change_bits() -> None:
    """What the steps are for; once this fails, ``jax.jit`` alone will do."""

    def made() -> jax.Array:
        return INITIALIZERS["affine"](jax.random.key(0), (64, 32), jnp.float32)

    assert np.asarray(jax.jit(made)()).tobytes() != np.asarray(made()).tobytes()


@pytest.mark.parametrize("name", ["normal", "lecun", "affine", "reshaped"])
def test_no_device_computes_more_than_its_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (1024, 512)
    shard_bytes = 4 * 1024 * 512 // 8
    used: list[int] = []
    real: Any = jax.jit

    def measured(function: Any, **options: Any) -> Any:
        jitted = real(function, **options)

        def call(*args: Any) -> Any:
            memory = jitted.lower(*args).compile().memory_analysis()
            used.append(memory.output_size_in_bytes + memory.temp_size_in_bytes)
            return jitted(*args)

        return call

    monkeypatch.setattr(jax, "jit", measured)
    in_shards(lambda: INITIALIZERS[name](jax.random.key(0), shape, jnp.float32), "data", "model")
    assert (
        shard_bytes <= max(used) <= 6 * shard_bytes
    )  # the whole would be 8, and its temporaries more


def test_results_that_are_inputs_numbers_or_twice_the_same() -> None:
    key = jax.random.key(3)

    def made() -> dict[str, Any]:
        w = jnp.ones((8,)) * 3
        return {"key": key, "one": jnp.float32(1), "w": w, "again": w, "unused": jnp.zeros(0)}

    shapes, arrays = compute_in_steps(made, lambda _: [sharding()] * 5)
    found = jax.tree.unflatten(jax.tree.structure(shapes), arrays)
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(key).tolist()
    assert found["one"] == 1
    assert found["w"].tolist() == found["again"].tolist() == [3.0] * 8
    assert found["unused"].shape == (0,)


def test_what_no_result_needs_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = jax.jit, []
    monkeypatch.setattr(jax, "jit", lambda f, **o: seen.append(f) or real(f, **o))

    def made() -> jax.Array:
        jnp.sin(jnp.cos(jax.lax.full((8,), 2.0)))
        return jax.lax.full((8,), 1.0)

    assert in_shards(made, "data").tolist() == [1.0] * 8
    assert len(seen) <= 1
