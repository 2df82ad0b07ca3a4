"""This project's restore of a checkpoint onto the target mesh: ``python -m benchmarks.restoring SRC``.

Prints the time from the call to arrays that are ready, and stored bytes read and needed.
"""

from __future__ import annotations

import sys
import time

from benchmarks.peers.devices import target_sharding

import jax  # isort: skip

import reshard
from reshard.layout.jax_bridge import layout_from_sharding


def layouts() -> reshard.LayoutMap:
    """The (8,) mesh: the embedding split by rows, everything else by columns."""
    embedding, other = map(layout_from_sharding, map(target_sharding, ("embedding", "kernel")))
    found = reshard.LayoutMap(embedding.device_mesh, ambiguous="first")
    found["embedding"], found[""] = embedding, other
    return found


if __name__ == "__main__":
    started = time.perf_counter()
    reports: list = []
    tree = reshard.restore(sys.argv[1], layout=layouts(), report=reports.append)
    jax.block_until_ready(tree)
    print(f"working_s={time.perf_counter() - started:.3f}")
    print(f"read_bytes={reports[0].read_bytes} needed_bytes={reports[0].needed_bytes}")
