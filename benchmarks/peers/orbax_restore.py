"""Stock Orbax restore of a checkpoint onto the target mesh: ``orbax_restore SRC``."""

from __future__ import annotations

import sys
import time

from benchmarks.peers.io_bytes import read_bytes
from benchmarks.peers.orbax_convert import checkpointer, target_tree

import jax  # isort: skip

if __name__ == "__main__":
    started, before = time.perf_counter(), read_bytes()
    with checkpointer("default") as reader:
        jax.block_until_ready(reader.restore(sys.argv[1], target_tree("default", sys.argv[1])))
    print(f"working_s={time.perf_counter() - started:.3f} read_bytes={read_bytes() - before}")
