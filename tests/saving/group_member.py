"""One process of a group that saves: ``group_member.py INDEX COUNT ADDRESS PATH SCENARIO``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from reshard.storage import target as target_place

INDEX, COUNT, ADDRESS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ROOT, SCENARIO = Path(sys.argv[4]), sys.argv[5]


def spread(values: np.ndarray, mesh: Mesh, *axes: Any) -> jax.Array:
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def tree(mesh: Mesh) -> dict[str, Any]:
    return {
        "both": spread(values(64, 32), mesh, "data", "model"),
        "rows": spread(values(4096, 256), mesh, "data", None),
        "columns": spread(values(8, 4096), mesh, None, ("model", "data")),
        "small": spread(values(16), mesh, ("data", "model")),
        "replicated": spread(values(512, 512), mesh),
        "replicated2": spread(values(512, 513), mesh),
        "key": jax.random.key(3),
        "keys": jax.jit(
            lambda: jax.random.split(jax.random.key(1), 8),
            out_shardings=NamedSharding(mesh, PartitionSpec(("data", "model"))),
        )(),
        "count": jax.numpy.int32(7),
        "numpy": values(9, 5),
        "note": "text",
        "table": reshard.ShardedVariable.split(values(13, 4), 5, "table", partition_strategy="mod"),
    }


def donated(mesh: Mesh) -> None:
    """Save in the background while the arrays are given away, two saves at once."""
    state = tree(mesh)
    handles = [reshard.save(ROOT / name, state, wait=False, timeout=60) for name in ("one", "two")]
    change = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    for name in ("both", "rows", "columns", "small", "replicated"):
        state[name] = change(state[name])
    for handle in handles:
        handle.wait()


def different(mesh: Mesh) -> None:
    state = tree(mesh)
    state["numpy"] = values(9, 5 + INDEX)
    reshard.save(ROOT / "different", state, timeout=60)


def bad_leaf(mesh: Mesh) -> None:
    state = tree(mesh) | ({"odd": object()} if INDEX else {"odd": 1})
    reshard.save(ROOT / "bad_leaf", state, timeout=60)


def no_writing(mesh: Mesh) -> None:
    """The second process cannot write its chunks."""

    def refused(path: str) -> int:
        raise reshard.StorageError(f"cannot create {path!r}: refused")

    with pytest.MonkeyPatch.context() as patch:
        if INDEX:
            patch.setattr(target_place, "open_new", refused)
        reshard.save(ROOT / "no_writing", tree(mesh), timeout=60)


def absent(mesh: Mesh) -> None:
    """Only the first process saves."""
    if not INDEX:
        reshard.save(ROOT / "absent", tree(mesh), timeout=1)


def exists(mesh: Mesh) -> None:
    reshard.save(ROOT / "exists", tree(mesh), timeout=60)
    reshard.save(ROOT / "exists", tree(mesh), timeout=60, overwrite=True)
    reshard.save(ROOT / "exists", tree(mesh), timeout=60)


def step(mesh: Mesh) -> None:
    """Two steps of a run whose folders have a prefix, the second in the background, and one that is there."""
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(step_prefix="ckpt", step_format_fixed_length=4)
    with ocp.CheckpointManager(ROOT / "steps", options=options) as steps:
        steps.save(1, args=ocp.args.StandardSave({"both": tree(mesh)["both"]}))
        steps.wait_until_finished()
    reshard.save(ROOT / "steps", tree(mesh), step=2, timeout=60)
    saving = reshard.save(ROOT / "steps", tree(mesh), step=3, wait=False, timeout=60)
    assert saving is not None
    saving.wait()
    reshard.save(ROOT / "steps", tree(mesh), step=3, timeout=60)


def manager(mesh: Mesh) -> None:
    """A CheckpointManager of all processes, whose data Orbax writes."""
    import orbax.checkpoint as ocp

    from reshard.saving.orbax_manager import SliceSave

    state = {
        k: v for k, v in tree(mesh).items() if k not in ("note", "key", "count", "table")
    }  # Orbax refuses these
    with ocp.CheckpointManager(ROOT / "manager") as steps:
        steps.save(1, args=SliceSave(state))
        steps.wait_until_finished()


def main() -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(ADDRESS, COUNT, INDEX)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    scenarios = (manager, step, donated, different, bad_leaf, no_writing, absent, exists)
    for scenario in scenarios:
        if scenario.__name__ != SCENARIO and SCENARIO != "all":
            continue
        try:
            scenario(mesh)
            print(f"{scenario.__name__}: done", flush=True)
        except reshard.ReshardError as error:
            line = str(error).replace("\n", " ")
            print(f"{scenario.__name__}: {type(error).__name__}: {line}", flush=True)


if __name__ == "__main__":
    main()
