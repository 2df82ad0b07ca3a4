"""A training run: ``training_run.py DIRECTORY OPTIONS`` saves steps by stock Orbax, with pauses.

OPTIONS, as JSON: ``steps`` (start, stop, step), ``form`` (v0 or v1), ``keep`` (max_to_keep), ``pause`` (seconds; null: until a line
comes on stdin).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp1


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full((256, 64), step, np.float32), "step": np.array([step])}


def main() -> None:
    directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    steps, pause, keep = range(*options["steps"]), options["pause"], options["keep"]
    if options["form"] == "v0":
        _v0(directory, steps, pause, keep)
    else:
        _v1(directory, steps, pause, keep)


def _rest(pause: float | None) -> None:
    if pause is None:
        sys.stdin.readline()
    else:
        time.sleep(pause)


def _v0(directory: Path, steps: range, pause: float | None, keep: int | None) -> None:
    chosen = ocp.CheckpointManagerOptions(max_to_keep=keep)
    with ocp.CheckpointManager(directory, options=chosen) as manager:
        for step in steps:
            manager.save(step, args=ocp.args.StandardSave(tree(step)))
            _rest(pause)


def _v1(directory: Path, steps: range, pause: float | None, keep: int | None) -> None:
    policy = ocp1.training.preservation_policies.LatestN(keep)
    with ocp1.training.Checkpointer(directory, preservation_policy=policy) as checkpointer:
        for step in steps:
            checkpointer.save(step, tree(step))
            _rest(pause)


if __name__ == "__main__":
    main()
