"""Restores and saves a checkpoint on gs:// with stock Orbax: what a job does that has the memory for all of it.

python stock_orbax.py gs://source/run/1 gs://target/run/1

It runs in the environment of clouds (``.oracles/cloud``), which has no reshard.
"""

from __future__ import annotations

import sys

import orbax.checkpoint as ocp


def main() -> None:
    """Restores into memory, and saves."""
    source, target = sys.argv[1:3]
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(source)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=True)) as saver:
        saver.save(target, ocp.args.PyTreeSave(tree))


if __name__ == "__main__":
    main()
