"""Live arrays that are saved, and what the commands that only read say of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import reshard
from tests.orbax_trees import dtype_tree, small_tree
from tests.recorded.sources import weights
from tests.recorded.ways import LIMITS, Recorded, Use, World, command, observed


def _saved(target: str, make: Callable[[], Any] = weights, **options: Any) -> Use:
    """Live arrays as a checkpoint."""

    def carried_out(world: World) -> Recorded:
        dst, tree = world.target(target), make()
        return observed(
            world,
            lambda: reshard.save(dst, tree, **{**LIMITS, **options}),
            lambda _: {"files": world.files(dst), "inspect": command(world, "inspect", dst)},
        )

    return carried_out


def _saved_steps(target: str) -> Use:
    """Two steps of a run."""

    def carried_out(world: World) -> Recorded:
        run = world.target(target)
        for step in (7, 12):
            reshard.save(run, {"w": np.arange(64.0), "count": step}, step=step, **LIMITS)
        return {"files": world.files(run), "steps": command(world, "steps", run)}

    return carried_out


def _read(source: str, *more: str) -> Use:
    """The output of the commands that only read a checkpoint."""

    def carried_out(world: World) -> Recorded:
        src = world.source(source)
        found = {
            name: command(world, name, src, *more) for name in ("inspect", "verify", "fingerprint")
        }
        return found | {"inspect --json": command(world, "inspect", src, *more, "--json")}

    return carried_out


def _in_shards() -> dict[str, Any]:
    """Variables in shards of their own, div and mod."""
    table = np.arange(1040, dtype=np.float32).reshape(130, 8)
    split = partial(reshard.ShardedVariable.split, table)
    return {"div": split(3), "mod": split(4, partition_strategy="mod"), "axis": split(2, axis=1)}


_LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "small", "axes": ["x"]}]}
_READERS = reshard.DeviceMesh((2, 2, 2), ("x", "data", "model"))

SAVES: Mapping[str, Use] = {
    "save": _saved("saved"),
    "save: state": _saved("saved-state", small_tree, compression="zstd", style="v1"),
    "save: database": _saved("saved-ocdbt", ocdbt=True, chunk_bytes=65536),
    "save: to S3": _saved("s3:saved-out"),
    "save: steps": _saved_steps("saved-steps"),
    "save: every dtype": _saved("saved-dtypes", dtype_tree, compression="gzip"),
    "save: variables in shards": _saved("saved-shards", _in_shards),
    "save: chunks for readers": _saved("saved-chunks", chunks_for=[_READERS], layout=_LAYOUT),
    "save: to zstd in GCS": _saved("gs:saved-zstd", compression="zstd:3", chunk_bytes="512KiB"),
    "save: refused, a target that exists": _saved("saved"),
    "save: refused, little memory": _saved("saved-little", max_memory="1KiB"),
    "save: refused, leaves": _saved("saved-leaves", lambda: {"a": {1, 2}, "b": object()}),
    "save: refused, another layout": _saved(
        "saved-layout", layout={**_LAYOUT, "rules": [{"match": "rows", "axes": [None, "x"]}]}
    ),
    "read": _read("saved"),
    "read: safetensors": _read("hf"),
}
