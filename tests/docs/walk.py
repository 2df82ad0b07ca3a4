"""What the walks of a first-time user share: a shell, and the runs that a training job has left."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.docs.run_page import environment


@dataclass(frozen=True)
class Typed:
    """What a command that was typed has printed, and its exit code."""

    code: int
    out: str
    errors: str

    @property
    def said(self) -> str:
        """All of it on one line, so that it can be searched whatever the width."""
        return " ".join((self.out + self.errors).split())


def shell(folder: Path, command: str, **variables: str) -> Typed:
    """Runs a line in bash, in a folder, as on a terminal of 80 columns."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder, env=environment() | variables, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    return Typed(done.returncode, done.stdout, done.stderr)


def ok(folder: Path, command: str) -> str:
    """What a line says that must succeed."""
    done = shell(folder, command)
    assert done.code == 0, f"{command}\n{done.out}{done.errors}"
    return done.out


def mesh(*shape: int, names: tuple[str, ...] = ("data", "model")) -> Mesh:
    """A mesh of the simulated devices, in order."""
    return Mesh(np.reshape(jax.devices()[: int(np.prod(shape))], shape), names)


class MLP(nnx.Module):
    """Three layers in a list, wide enough to be split."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(3)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nnx.gelu(layer(x))
        return x


def trained(on: Mesh) -> dict[str, Any]:
    """An NNX model after a step of Adam, with its optimizer, counter and key, matrices split over ``on``."""
    model = MLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(0), (8, 64))
    optimizer.update(model, nnx.grad(lambda model: jnp.mean(model(x) ** 2))(model))
    state = {
        "params": {"layers": [nnx.to_pure_dict(nnx.state(layer)) for layer in model.layers]},
        "opt_state": nnx.to_pure_dict(nnx.state(optimizer)),
        "step": jnp.int32(1),
        "rng": jax.random.key(7),
    }
    return jax.tree.map(lambda leaf: _placed(leaf, on), state)


def _placed(leaf: jax.Array, on: Mesh) -> jax.Array:
    axes = (None, "model") if leaf.ndim == 2 else ()
    return jax.device_put(leaf, NamedSharding(on, PartitionSpec(*axes)))


def save_run(run: Path, steps: dict[int, Any]) -> Path:
    """A CheckpointManager's run with these steps: a tree, or several items by name."""
    items = [item for step in steps.values() for item in step if isinstance(step, Items)]
    names = tuple(dict.fromkeys(items)) or None
    options = ocp.CheckpointManagerOptions(max_to_keep=None)
    with ocp.CheckpointManager(os.fspath(run), item_names=names, options=options) as manager:
        for step, tree in steps.items():
            saves = {name: ocp.args.StandardSave(item) for name, item in tree.items()}
            whole = isinstance(tree, Items)
            args = ocp.args.Composite(**saves) if whole else ocp.args.StandardSave(tree)
            manager.save(step, args=args)
    return run


class Items(dict[str, Any]):
    """Trees that a step holds side by side, by name."""
