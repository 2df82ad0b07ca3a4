"""Stock Orbax restore of a checkpoint onto the target mesh: ``orbax_restore SRC``."""

from __future__ import annotations

import sys
import time

from benchmarks.peers.orbax_convert import checkpointer, target_tree

import jax  # isort: skip

if __name__ == "__main__":
    started = time.perf_counter()
    with checkpointer("default") as reader:
        jax.block_until_ready(reader.restore(sys.argv[1], target_tree("default", sys.argv[1])))
    print(f"working_s={time.perf_counter() - started:.3f}")
