"""Training runs and checkpoints of items that stock Orbax saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import v1

from tests.orbax_trees import put


def weights(scale: float = 1.0) -> dict[str, Any]:
    return {"w": put(np.arange(64, dtype=np.float32).reshape(8, 8) * scale, "data", "model")}


def save_runs(root: Path) -> None:
    """Runs by CheckpointManager and by v1's Checkpointer, with every way of naming steps."""
    options = ocp.CheckpointManagerOptions
    for name, how in {
        "plain": options(),
        "padded": options(step_format_fixed_length=8),
        "prefixed": options(step_prefix="ckpt"),
        "both": options(step_prefix="my_ckpt", step_format_fixed_length=4),
    }.items():
        with ocp.CheckpointManager(root / name, options=how) as manager:
            for step in (1, 2, 10):
                manager.save(step, args=ocp.args.StandardSave(weights(step)))
    with ocp.CheckpointManager(root / "items") as manager:
        args = ocp.args.Composite(
            model=ocp.args.StandardSave(weights(5)),
            ema=ocp.args.PyTreeSave({"w": weights(6)["w"], "key": jax.random.key(7)}),
            data=ocp.args.JsonSave({"epoch": 2}),
        )
        manager.save(5, args=args, custom_metadata={"seed": 1}, metrics={"loss": 0.5})
    with v1.training.Checkpointer(root / "v1") as checkpointer:
        for step in (0, 3):
            checkpointer.save(step, weights(step))
    v1.save_checkpointables(root / "v1-items", {"model": weights(8), "ema": weights(9)})
