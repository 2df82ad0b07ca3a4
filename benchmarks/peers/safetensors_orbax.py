"""What people run between the two formats: load everything, save everything.

``safetensors_orbax to-orbax SRC DST``: safetensors' numpy loader, then Orbax's StandardCheckpointer onto a mesh of 8.
``safetensors_orbax to-shards SRC DST``: Orbax's restore, then safetensors' ``save_file`` in four files.
``safetensors_orbax to-ranks SRC DST``: the same, but a file of slices for each of 8 devices.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - gives numpy bfloat16
import numpy as np

RANKS = 8


def loaded(source: Path) -> dict[str, Any]:
    """Every tensor of a folder of safetensors."""
    from safetensors.numpy import load_file

    return {
        n: t for file in sorted(source.glob("*.safetensors")) for n, t in load_file(file).items()
    }


def to_orbax(source: Path, target: Path) -> None:
    """Each tensor is split by rows over the mesh."""
    from benchmarks.peers.devices import row_sharding

    import jax  # isort: skip
    import orbax.checkpoint as ocp  # isort: skip

    tree = {name: jax.device_put(t, row_sharding()) for name, t in loaded(source).items()}
    with ocp.StandardCheckpointer() as writer:
        writer.save(target, tree)


def restored(source: Path) -> dict[str, Any]:
    """Every tensor of an Orbax checkpoint, as numpy arrays."""
    from benchmarks.peers.devices import row_sharding

    import jax  # isort: skip
    import orbax.checkpoint as ocp  # isort: skip

    with ocp.StandardCheckpointer() as reader:
        metadata = reader.metadata(source).item_metadata.tree
        wanted = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=row_sharding())
            for name, leaf in metadata.items()
        }
        return {name: np.asarray(t) for name, t in reader.restore(source, wanted).items()}


def to_shards(source: Path, target: Path) -> None:
    """Four files of whole tensors."""
    from safetensors.numpy import save_file

    target.mkdir()
    tree = restored(source)
    names = sorted(tree)
    for number in range(4):
        save_file({n: tree[n] for n in names[number::4]}, target / f"model-{number}.safetensors")


def to_ranks(source: Path, target: Path) -> None:
    """A file for each device, with its rows of every tensor."""
    from safetensors.numpy import save_file

    target.mkdir()
    tree = restored(source)
    for rank in range(RANKS):
        rows = {n: np.split(t, RANKS)[rank] for n, t in tree.items()}
        save_file(rows, target / f"rank-{rank}.safetensors")


if __name__ == "__main__":
    started = time.perf_counter()
    work = {"to-orbax": to_orbax, "to-shards": to_shards, "to-ranks": to_ranks}[sys.argv[1]]
    work(Path(sys.argv[2]), Path(sys.argv[3]))
    print(f"working_s={time.perf_counter() - started:.3f}")
