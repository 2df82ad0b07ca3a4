"""Live arrays that are saved and restored, and tensors that are read without a target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import reshard
from tests.orbax_trees import expected_arrays
from tests.recorded.sources import weights
from tests.recorded.ways import LIMITS, Recorded, World, command


def saved(
    target: str, make: Callable[[], Any] = weights, **options: Any
) -> Callable[[World], Recorded]:
    """Live arrays as a checkpoint."""

    def carried_out(world: World) -> Recorded:
        dst = world.target(target)
        reshard.save(dst, make(), **{**LIMITS, **options})
        return {"files": world.files(dst), "inspect": command(world, "inspect", dst)}

    return carried_out


def saved_steps(target: str) -> Callable[[World], Recorded]:
    """Two steps of a run."""

    def carried_out(world: World) -> Recorded:
        run = world.target(target)
        for step in (7, 12):
            reshard.save(run, {"w": np.arange(64.0), "count": step}, step=step, **LIMITS)
        return {"files": world.files(run), "steps": command(world, "steps", run)}

    return carried_out


def restored(source: str, **options: Any) -> Callable[[World], Recorded]:
    """A checkpoint as live arrays."""

    def carried_out(world: World) -> Recorded:
        reports: list[reshard.RestoreReport] = []
        how = {**LIMITS, **options}
        tree = reshard.restore(world.source(source), report=reports.append, **how)
        arrays = expected_arrays(tree)
        return {
            "report": world.said(reports[0]),
            "arrays": {name: _array_text(array) for name, array in arrays.items()},
            "shardings": {n: _sharding_text(a) for n, a in _named_leaves(tree).items()},
        }

    return carried_out


def streamed(source: str, name: str, box: str, dtype: str | None) -> Callable[[World], Recorded]:
    """A box of a tensor as bytes."""

    def carried_out(world: World) -> Recorded:
        opened = reshard.open_checkpoint(world.source(source))
        stream = opened.stream(name, box, dtype, max_memory=LIMITS["max_memory"])
        data = b"".join(stream)
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    return carried_out


def read(source: str, *more: str) -> Callable[[World], Recorded]:
    """What the commands that only read say of a checkpoint."""

    def carried_out(world: World) -> Recorded:
        src = world.source(source)
        found = {
            name: command(world, name, src, *more) for name in ("inspect", "verify", "fingerprint")
        }
        return found | {"inspect --json": command(world, "inspect", src, *more, "--json")}

    return carried_out


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _array_text(array: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype} {list(array.shape)} {digest}"


def _sharding_text(leaf: Any) -> str:
    return str(leaf.sharding) if isinstance(leaf, jax.Array) else type(leaf).__name__
