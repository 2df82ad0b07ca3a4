"""Saves the benchmark's live tree once, durably: ``save_tree WHO SIZE DST``.

Prints ``saving_s``: from the call to the end of ``sync -f`` of the target's file system, so that both
are on the device when the clock stops. Orbax syncs each file as it writes, ours at its end; neither
leaves much to the last ``sync``. ``grown_mib`` is the peak of resident memory beyond the live tree.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmarks.peers.devices  # noqa: F401  (sets jax up)

import jax  # isort: skip
import orbax.checkpoint as ocp  # isort: skip

import reshard
from benchmarks.trees.make_tree import live_tree
from benchmarks.trees.sizes import TreeSize


def by_orbax(target: Path, tree: Any) -> None:
    """Orbax as it comes: zarr2 in an OCDBT database, zstd level 1."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(target, tree)
        checkpointer.wait_until_finished()


def by_orbax_raw(target: Path, tree: Any) -> None:
    """As much like ours on disk as Orbax goes: zarr3 in plain files without compression."""
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=True, use_compression=False)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(target, ocp.args.PyTreeSave(tree))


def by_reshard(target: Path, tree: Any) -> None:
    """Ours as it comes: zarr3 in plain files without compression, checksums, digests."""
    reshard.save(target, tree)


def by_reshard_zstd(target: Path, tree: Any) -> None:
    """Ours with zstd level 1."""
    reshard.save(target, tree, compression="zstd")


SAVERS: dict[str, Callable[[Path, Any], None]] = {
    "orbax": by_orbax,
    "orbax-raw": by_orbax_raw,
    "reshard": by_reshard,
    "reshard-zstd": by_reshard_zstd,
}


def _sync(target: Path) -> None:
    subprocess.run(["sync", "-f", target.parent], check=True)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Make the tree, save it, say what that took."""
    who, size, target = sys.argv[1], sys.argv[2], Path(sys.argv[3]).absolute()
    tree = jax.block_until_ready(live_tree(TreeSize.named(size)))
    SAVERS[who](target.with_name(target.name + ".warm"), {"x": jax.numpy.ones(8)})
    _sync(target)
    before, started = _peak_mib(), time.perf_counter()
    SAVERS[who](target, tree)
    saved = time.perf_counter()
    _sync(target)
    ended = time.perf_counter()
    print(f"call_s={saved - started:.3f} saving_s={ended - started:.3f}")
    print(f"peak_mib={_peak_mib():.0f} grown_mib={_peak_mib() - before:.0f}")


if __name__ == "__main__":
    main()
