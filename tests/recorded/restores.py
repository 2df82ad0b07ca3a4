"""Checkpoints that are restored as live arrays: on other meshes, into arrays that are there, cast, in shards, in part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from tests.orbax_trees import expected_arrays, mesh
from tests.recorded.ways import LIMITS, Recorded, Use, World, array_text, observed

EIGHT = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "rows|cols", "axes": ["x"]}]}
"""For as many devices as there are."""

TURNED = {
    "sizes": {"l": 2},
    "drop": ["small"],
    "map": [
        {"from": "rows", "to": "turned/rows", "shape": "i o -> o i"},
        {"from": "both", "to": "parts/both", "shape": "(l i) o -> l i o"},
        {"from": "cols", "to": "cols", "cast": "bfloat16"},
    ],
}


def _restored(source: str, made: Mapping[str, Callable[[], Any]] = {}, **options: Any) -> Use:
    """A checkpoint as live arrays; ``made`` are options that are made for each call."""

    def carried_out(world: World) -> Recorded:
        reports: list[reshard.RestoreReport] = []
        src, how = world.source(source), {**LIMITS, **options}
        how |= {name: make() for name, make in made.items()}

        def told(tree: Any) -> Recorded:
            return {
                "report": world.said(reports[0]),
                "arrays": {n: array_text(a) for n, a in expected_arrays(tree).items()},
                "shardings": {n: _place_text(leaf) for n, leaf in _named_leaves(tree).items()},
            }

        return observed(world, lambda: reshard.restore(src, report=reports.append, **how), told)

    return carried_out


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        tree, lambda leaf: isinstance(leaf, reshard.ShardedVariable)
    )
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _place_text(leaf: Any) -> str:
    """The place of a leaf: its sharding, or those of its shards."""
    if isinstance(leaf, reshard.ShardedVariable):
        shards = ", ".join(f"{list(s.shape)} {_place_text(s)}" for s in leaf.variables)
        return f"{leaf.name} axis {leaf.axis} {leaf.partition_strategy}: {shards}"
    return str(leaf.sharding) if isinstance(leaf, jax.Array) else type(leaf).__name__


def _structs() -> dict[str, Any]:
    """Other axes of another mesh, and one array that has no sharding."""
    on = mesh((2, 4))

    def struct(shape: tuple[int, ...], *axes: Any) -> Any:
        sharding = NamedSharding(on, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    return {
        "rows": struct((512, 1024), "model", "data"),
        "cols": struct((1024, 512), None, ("data", "model")),
        "both": struct((512, 512)),
        "small": jax.ShapeDtypeStruct((100,), jnp.int32),
    }


def _arrays() -> dict[str, Any]:
    """For the weights."""
    shapes = {"rows": (512, 1024), "cols": (1024, 512), "both": (512, 512)}
    floats = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return {**floats, "small": np.zeros(100, np.int32)}


def _halves() -> dict[str, Any]:
    return {"rows": jnp.zeros((512, 1024), jnp.bfloat16)}


def _few() -> dict[str, Any]:
    return {"rows": np.zeros((512, 1024), np.float32), "other": np.ones(3)}


def _shardings() -> dict[str, Any]:
    on = mesh((8,), ("x",))
    split = {"rows": PartitionSpec(None, "x"), "both": PartitionSpec("x"), "cols": PartitionSpec()}
    return {**{n: NamedSharding(on, spec) for n, spec in split.items()}, "small": None}


_FORMS = (
    "raw3", "ocdbt2", "ocdbt3", "gzip", "blosc", "zstd", "chunks", "one.safetensors", "hf", "ranks", "halves",
)  # fmt: skip

RESTORES: Mapping[str, Use] = {
    "restore": _restored("zarr2"),
    "restore: layout": _restored("raw", layout=EIGHT, cast={"float": "bfloat16"}),
    "restore: state": _restored("state", select=["^params/", "^key"]),
    "restore: from safetensors": _restored("dcp", mesh="x=8", missing_axes="replicate"),
    "restore: from S3": _restored("s3:zarr3", layout=EIGHT),
    **{f"restore: layout, from {source}": _restored(source, layout=EIGHT) for source in _FORMS},
    "restore: like structs": _restored("raw", {"like": _structs}),
    "restore: like structs, from casts": _restored("halves", {"like": _structs}),
    "restore: like arrays": _restored("zarr3", {"like": _arrays}),
    "restore: like a part": _restored("raw", {"like": _few}, unexpected="ignore", missing="keep"),
    "restore: shardings": _restored("zarr2", {"layout": _shardings}),
    "restore: into": _restored("zstd", {"into": _arrays}),
    "restore: into, from safetensors": _restored("dcp", {"into": _arrays}),
    "restore: into a part": _restored("raw", {"into": _few}, unexpected="ignore", missing="keep"),
    "restore: partition": _restored("raw", partition={"rows|cols": 3}),
    "restore: partition by mod": _restored(
        "zstd", partition={"small": 4}, partition_strategy="mod"
    ),
    "restore: partition of columns": _restored(
        "ocdbt3", partition=reshard.MinSizePartitioner(1 << 19, 4), axis=1, drop=["small"]
    ),
    "restore: cast": _restored("zstd", cast={"rows": "float8_e4m3fn:saturate", "int32": "int64"}),
    "restore: rename": _restored("state", drop=["opt"], rename=[["^params/dense", "model"]]),
    "restore: map": _restored("raw", map=TURNED, layout=EIGHT),
    "restore: every dtype": _restored("dtypes"),
    "restore: an item": _restored("run", step=12, item="state", select=["^params/", "^opt"]),
    "restore: missing chunks": _restored("incomplete", layout=EIGHT, missing_chunks="warn"),
    "restore: little memory": _restored("zstd", layout=EIGHT, max_memory="4MiB"),
    "restore: from GCS": _restored("gs:zstd", {"into": _arrays}),
    "restore: refused, little memory": _restored("zstd", max_memory="100KiB"),
    "restore: refused, damage": _restored("damaged"),
    "restore: refused, damage of zstd": _restored("broken", select=["rows"]),
    "restore: refused, missing chunks": _restored("incomplete", missing_chunks="refuse"),
    "restore: refused, another tree": _restored("raw", {"like": _few}),
    "restore: refused, a lossy dtype": _restored("raw", {"like": _halves}, unexpected="ignore"),
    "restore: refused, devices": _restored("raw", mesh="x=16", missing_axes="replicate"),
}  # fmt: skip
