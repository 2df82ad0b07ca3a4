"""create: flax NNX modules, optimizers and trees of arrays, made in shards by path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from reshard import LayoutError, LayoutMap, VariableError, VariableTypeError
from reshard.variables import Variable, create
from tests.variables.models import layouts, mesh

ROOT = Path(__file__).parents[3]


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        normal = nnx.initializers.normal(0.02)
        self.a = nnx.Linear(8, 8, kernel_init=normal, rngs=rngs)
        self.lst = nnx.List([nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)])
        self.by_name = nnx.Dict({"x": nnx.Linear(8, 8, rngs=rngs)})


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(16, 8, rngs=rngs)
        self.blk = Block(rngs)
        self.attend = nnx.MultiHeadAttention(4, 8, decode=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.blk.a(self.embed(ids))
        for layer in self.blk.lst:
            x = layer(x)
        return self.drop(self.norm(self.attend(x)))


class Small(nnx.Module):
    """What trains differently in shards where it is wrong: products, statistics, random numbers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blk = nnx.Dict({"lst": nnx.List([nnx.Linear(8, 8, rngs=rngs)])})
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.drop(self.norm(self.blk["lst"][0](x)))


def make() -> Model:
    return Model(nnx.Rngs(0))


def training(kind: Any = Model) -> tuple[Any, Any]:
    model = kind(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


def by_path(root: Any) -> dict[str, Any]:
    flat = nnx.to_flat_state(nnx.state(root))
    return {".".join(map(str, path)): variable for path, variable in flat}


def bits(value: jax.Array) -> bytes:
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value).tobytes()


def rules() -> LayoutMap:
    made = LayoutMap(mesh(), ambiguous="first")
    made[r"blk\.lst\.0\.kernel"] = (None, "model")
    made[r"blk\.by_name\.x\.kernel"] = ("data", "model")
    made[r"attend\.(query|key|value)\.kernel"] = ("data", "model")
    made["embedding"] = (("data", "model"),)
    made["drop"] = ("model",)
    made["kernel"] = ("data",)
    return made


SPECS = {
    "embed.embedding": P(("data", "model")),
    "blk.a.kernel": P("data"),
    "blk.lst.0.kernel": P(None, "model"),
    "blk.lst.1.kernel": P("data"),
    "blk.by_name.x.kernel": P("data", "model"),
    "attend.query.kernel": P("data", "model"),
    "attend.out.kernel": P("data"),
    "attend.out.bias": P(),
    "norm.mean": P(),
    "drop.rngs.count": P(),
    "drop.rngs.key": P(),
}


@pytest.fixture(scope="module")
def in_shards() -> dict[str, Any]:
    """Variables of a model, below 0, and of its optimizer, below 1."""
    with rules().scope():
        return by_path(create(training))


def test_a_module_has_the_layouts_of_its_paths(in_shards: dict[str, Any]) -> None:
    found = {path.removeprefix("0."): variable for path, variable in in_shards.items()}
    assert {path: found[path].get_value().sharding.spec for path in SPECS} == SPECS
    assert {s.data.shape for s in found["blk.lst.0.kernel"].get_value().addressable_shards} == {
        (8, 4)
    }


def test_every_bit_of_a_module_and_its_optimizer_is_as_without_the_scope(
    in_shards: dict[str, Any],
) -> None:
    made = in_shards
    plain = by_path(training())
    assert list(made) == list(plain)
    for path, variable in plain.items():
        assert type(made[path]) is type(variable), path
        assert bits(made[path].get_value()) == bits(variable.get_value()), path
    mu = {path: v.get_value().sharding.spec for path, v in made.items() if ".mu." in path}
    assert mu["1.opt_state.0.mu.blk.lst.0.kernel"] == P(None, "model")
    assert made["1.step"].get_value().sharding.spec == P()


def test_an_optimizer_of_a_module_that_lives() -> None:
    with rules().scope():
        model = create(lambda: Small(nnx.Rngs(0)))
        optimizer = create(lambda: nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param))
    found = by_path(optimizer)["opt_state.0.nu.blk.lst.0.kernel"].get_value()
    assert found.sharding.spec == P(None, "model")
    assert not found.any()


def test_it_trains_as_the_module_that_was_made_without_a_scope() -> None:
    x = jnp.arange(32.0).reshape(4, 8) / 32

    @nnx.jit
    def step(model: Small, optimizer: Any) -> jax.Array:
        def loss(model: Small) -> jax.Array:
            return jnp.mean((model(x) - 1) ** 2)

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    with rules().scope():
        sharded = create(lambda: training(Small))
    plain = training(Small)
    ours, theirs = ([float(step(*pair)) for _ in range(3)] for pair in (sharded, plain))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert len(set(ours)) == 3
    assert sharded[0].blk["lst"][0].kernel.get_value().sharding.spec == P(None, "model")


def test_shared_modules_stay_shared() -> None:
    def tied() -> dict[str, Any]:
        layer = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        return {"encoder": layer, "decoder": layer}

    with layouts(**{"decoder.kernel": ("data",)}).scope():
        made = create(tied)
    assert made["encoder"] is made["decoder"]
    assert made["decoder"].kernel.get_value().sharding.spec == P("data")  # dicts are walked by key


def test_the_function_runs_once() -> None:
    runs: list[int] = []
    with layouts().scope():
        create(lambda: runs.append(1) or nnx.Linear(8, 8, rngs=nnx.Rngs(0)))
    assert runs == [1]


def test_outside_a_scope_it_only_calls() -> None:
    made = object()
    assert create(lambda: made) is made


def params() -> dict[str, Any]:
    key = jax.random.key(0)
    return {
        "w": jax.random.normal(key, (8, 4)) * 0.3,
        "lst": [jnp.ones(8), (jnp.zeros(8), 3)],
        "key": jax.random.split(key, 4),
    }


def test_a_tree_of_arrays_by_keys_and_indices() -> None:
    rules = layouts(**{"w": ("data", "model"), r"lst\.1\.0": ("model",), "key": ("model",)})
    with rules.scope():
        made = create(params)
    assert made["w"].sharding.spec == P("data", "model")
    assert [made["lst"][0].sharding.spec, made["lst"][1][0].sharding.spec] == [P(), P("model")]
    assert made["key"].is_fully_replicated
    plain = params()
    assert bits(made["w"]) == bits(plain["w"])
    assert made["lst"][1][1] == 3


def test_an_array_alone_has_the_empty_path() -> None:
    with layouts(**{"^$": ("data",)}).scope():
        made = create(lambda: jnp.arange(8.0) * 0.3)
        key = create(lambda: jax.random.key(3))
    assert (made.sharding.spec, key.is_fully_replicated) == (P("data"), True)
    assert bits(made) == bits(jnp.arange(8.0) * 0.3)


def test_not_while_jax_traces() -> None:
    with layouts().scope():
        with pytest.raises(VariableError, match=r"while jax traces a function.*create outside"):
            create(lambda: {"w": create(params)["w"]})
        with pytest.raises(VariableError, match="may compute arrays, but not look at their values"):
            create(lambda: {"w": jnp.ones(3) * float(jnp.ones(3).sum())})


def test_the_state_of_optax_by_its_fields() -> None:
    with layouts(**{r"0\.mu\.w": ("data",)}).scope():
        state = create(lambda: optax.adam(1e-3).init({"w": jnp.ones((8, 4))}))
    assert state[0].mu["w"].sharding.spec == P("data")
    assert state[0].nu["w"].sharding.spec == P()


def test_a_layout_that_does_not_fit_names_the_path() -> None:
    with (
        layouts(**{r"blk\.lst\.0\.bias": (None, "model")}).scope(),
        pytest.raises(LayoutError, match=r"'blk\.lst\.0\.bias' has 1 dimensions"),
    ):
        create(make)


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: Variable(jnp.ones, (3,)), "a Variable at 'its top'"),
        (lambda: {"a": [object()]}, r"a object at 'a\.0'"),
        (lambda: {"a": "text"}, "a str at 'a'"),
        (lambda: {"a": np.array("text")}, "a ndarray at 'a'"),
    ],
)
def test_what_is_no_array_is_refused(made, what) -> None:
    with (
        layouts().scope(),
        pytest.raises(
            VariableTypeError, match=f"create's function returned {what}, which is not an array"
        ),
    ):
        create(made)


def test_flax_is_not_needed() -> None:
    code = """
        import sys
        sys.modules["flax"] = None
        sys.modules["keras"] = None
        import jax, jax.numpy as jnp, reshard
        from reshard.variables import Variable, materialize
        from reshard.variables import create
        layouts = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",), jax.devices()))
        layouts["w"] = ("x",)
        with layouts.scope():
            made = create(lambda: {"w": jnp.ones(8)})
            root = materialize({"w": Variable(jnp.ones, (8,))})
        print(made["w"].sharding.spec == root["w"].sharding.spec)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr
