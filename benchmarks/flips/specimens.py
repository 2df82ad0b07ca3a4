"""Small checkpoints for flipping bits: output of this project in every form, and fingerprinted sources.

Each has tensors in several chunks, padded ones among them, a PRNG key, text and numbers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import reshard

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}, {"match": "table", "axes": ["x"]}],
}

SMALL = {"layout": LAYOUT, "chunk_bytes": 400}

LARGER = {"layout": LAYOUT, "chunk_bytes": 2000}
"""For databases, which keep values up to 1 KiB in their nodes."""

SAFETENSORS: dict[str, Any] = {"to": "safetensors", "layout": LAYOUT, "drop": ["key"]}

SAFETENSORS_FILES: dict[str, dict[str, Any]] = {
    "one": {"files": "one"},
    "shards": {"files": "shards", "file_bytes": 4000},
    "ranks": {"files": "ranks"},
    "dcp": {"files": "dcp"},
}
"""Small tensors have a copy in each of the files of ranks."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """A checkpoint to damage.

    Attributes:
        is_output: whether this project wrote it, else it was fingerprinted.
    """

    name: str
    path: Path
    is_output: bool


def make_specimens(folder: Path) -> list[Specimen]:
    """All of them, each in a folder of its own."""
    outputs = {**_converted(), "saved": _save, "saved-v1": partial(_save, style="v1")}
    made = [Specimen(name, make(folder / name), True) for name, make in outputs.items()]
    for name, save in _sources().items():
        path = save(folder / name)
        reshard.fingerprint(path)
        made.append(Specimen(name, path, False))
    return made


def small_tree() -> dict[str, Any]:
    """Some kilobytes of tensors that do not compress to nothing."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    return {
        "params": {
            "kernel": jnp.asarray(rng.normal(size=(48, 60)).astype(np.float32)),
            "bias": jnp.asarray(rng.normal(size=(7,)), jnp.bfloat16),
            "table": rng.integers(-99, 99, (52, 5)).astype(np.int32),
        },
        "key": jax.random.key(7),
        "scale": np.float32(2.5),
    }


def _converted() -> dict[str, Callable[[Path], Path]]:
    """Output of ``convert``."""
    forms: dict[str, dict[str, Any]] = {
        "raw": {"compression": "none", **SMALL},
        "zstd": {"compression": "zstd", **SMALL},
        "gzip": {"compression": "gzip", **SMALL},
        "blosc": {"compression": "blosc", **SMALL},
        "keep": {"compression": "keep"},
        "ocdbt": {"ocdbt": True, **LARGER},
        "v1": {"style": "v1", **SMALL},
    }
    made: dict[str, Callable[[Path], Path]] = {
        name: partial(_convert, _pytree(use_ocdbt=False, use_zarr3=True), options)
        for name, options in forms.items()
    }
    made |= {
        f"{files}-safetensors" if files != "one" else "one.safetensors": partial(
            _convert, _pytree(), {**options, **SAFETENSORS}
        )
        for files, options in SAFETENSORS_FILES.items()
    }
    made["items"] = partial(_convert, _items, SMALL)
    made["items-ocdbt"] = partial(_convert, _items, {**LARGER, "ocdbt": True})
    return made


def _convert(save: Callable[[Path], Path], options: dict[str, Any], path: Path) -> Path:
    source = save(path.with_name(f"{path.name}.source"))
    reshard.convert(source, path, **options)
    shutil.rmtree(path.with_name(f"{path.name}.source"))
    return path


def _save(path: Path, **options: Any) -> Path:
    reshard.save(path, {**small_tree(), "note": "text"}, chunk_bytes=400, **options)
    return path


def _sources() -> dict[str, Callable[[Path], Path]]:
    """Checkpoints of stock Orbax in each way of storing."""
    return {
        "orbax-ocdbt-zarr2": _pytree(),
        "orbax-ocdbt-zarr3": _pytree(use_zarr3=True),
        "orbax-unmerged": _unmerged,
        "orbax-plain-zarr2": _pytree(use_ocdbt=False),
        "orbax-plain-zarr3": _pytree(use_ocdbt=False, use_zarr3=True),
        "orbax-plain-raw": _pytree(use_ocdbt=False, use_zarr3=True, use_compression=False),
        "orbax-items": _items,
    }


def _pytree(**handler: Any) -> Callable[[Path], Path]:
    return partial(_save_pytree, handler)


def _save_pytree(handler: dict[str, Any], path: Path) -> Path:
    import jax
    import orbax.checkpoint as ocp

    tree = small_tree()
    nbytes = 2000 if handler.get("use_ocdbt", True) else 400
    chunks = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=nbytes), tree)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**handler)) as checkpointer:
        checkpointer.save(path, ocp.args.PyTreeSave(tree, save_args=chunks))
    return path


def _unmerged(path: Path) -> Path:
    """A process's database as it is before Orbax merges it."""
    _save_pytree({}, path)
    (path / "manifest.ocdbt").unlink()
    shutil.rmtree(path / "d")
    return path


def _items(path: Path) -> Path:
    """A step of a manager with two items, of which one is no tree."""
    import orbax.checkpoint as ocp

    run = path.with_name(f"{path.name}.run")
    with ocp.CheckpointManager(run, item_names=("state", "meta")) as manager:
        state, meta = ocp.args.PyTreeSave(small_tree()), ocp.args.JsonSave({"epoch": 2, "of": [1]})
        manager.save(3, args=ocp.args.Composite(state=state, meta=meta))
        manager.wait_until_finished()
    (run / "3").rename(path)
    shutil.rmtree(run)
    return path
