"""This project's restore of a checkpoint onto the target mesh: ``python -m benchmarks.restoring.restore_once SRC``.

Prints the time from the call to arrays that are ready, and what was read and had to be.
"""

from __future__ import annotations

import sys
import time

from benchmarks.peers.devices import target_sharding
from benchmarks.peers.io_bytes import read_bytes

import jax  # isort: skip

import awscrt.checksums  # noqa: F401 - what a call loads when it is first needed, as Orbax does when it is imported

import reshard
import reshard.checkpoint
from reshard.layout.bridges.jax_sharding import layout_from_sharding
from reshard.restoring.restore import RestoreReport


def layouts() -> reshard.LayoutMap:
    """The (8,) mesh: the embedding split by rows, everything else by columns."""
    embedding, other = (layout_from_sharding(target_sharding(n)) for n in ("embedding", "kernel"))
    found = reshard.LayoutMap(embedding.device_mesh, ambiguous="first")
    found["embedding"], found[""] = embedding, other
    return found


def main() -> None:
    """Restore the checkpoint that the command line names."""
    reports: list[RestoreReport] = []
    started, before = time.perf_counter(), read_bytes()
    jax.block_until_ready(reshard.restore(sys.argv[1], layout=layouts(), report=reports.append))
    print(f"working_s={time.perf_counter() - started:.3f} read_bytes={read_bytes() - before}")
    print(f"needed_bytes={reports[0].needed_bytes}")


if __name__ == "__main__":
    main()
