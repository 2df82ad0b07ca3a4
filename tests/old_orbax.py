"""Checkpoints that old versions of Orbax and of Flax wrote, from ``old_orbax.tgz``; no version of today can write them.

Its folders, by who wrote them::

    o023, o041, o048, agg_0.5.9, o0523    Orbax 0.2.3, 0.4.1, 0.4.8, 0.5.9 and 0.5.23, each in six ways: ``ocdbt`` and
                                          ``noocdbt`` (PyTreeCheckpointHandler with and without use_ocdbt), ``plain``
                                          (PyTreeCheckpointer), ``flaxargs`` (with save_args_from_target of Flax), ``run`` and
                                          ``run2`` (CheckpointManager, with one item and with two)
    flax_o041, flax_o048                  flax.training.checkpoints on Orbax 0.4.1 and 0.4.8

All but those of flax.training.checkpoints hold ``expected_tree``, whose kernel was split over data=2, model=2.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

ARCHIVE = Path(__file__).parent / "old_orbax.tgz"

VERSIONS = ("o023", "o041", "o048", "agg_0.5.9", "o0523")

_WAYS = ("ocdbt", "noocdbt", "plain", "flaxargs", "run/3", "run2/3")

WITH_EXPECTED_TREE = tuple(f"{version}/{way}" for version in VERSIONS for way in _WAYS)

BY_FLAX = ("flax_o041/checkpoint_100", "flax_o048/checkpoint_100")

ALL = (*WITH_EXPECTED_TREE, *BY_FLAX)
"""Every checkpoint, by its path below the folder that ``unpack`` fills."""

KEPT_IN_FILE = (
    "o023/flaxargs", "o023/run/3", "o041/flaxargs", "o041/run/3", "o048/flaxargs", "o048/run/3",
    "agg_0.5.9/flaxargs", "agg_0.5.9/run/3", *BY_FLAX,
)  # fmt: skip
"""Those of which the msgpack file ``checkpoint`` has values."""


def unpack(folder: Path) -> Path:
    """All of them, below a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def item_folder(path: Path) -> Path:
    """The folder of a checkpoint's tree, which stock Orbax restores: the checkpoint itself, or an item of it."""
    return next((path / item for item in ("default", "state") if (path / item).is_dir()), path)


def expected_tree() -> dict[str, Any]:
    """What was saved."""
    zeros = {"dense": {"bias": np.zeros(8, np.float32), "kernel": np.zeros((4, 8), np.float32)}}
    return {
        "empty": {},
        "lr": 0.25,
        "none": None,
        "opt_state": [{"count": np.int32(0), "mu": zeros, "nu": zeros}, None],
        "params": {
            "dense": {
                "bias": np.arange(8).astype(jnp.bfloat16),
                "kernel": np.arange(32, dtype=np.float32).reshape(4, 8),
            },
            "emb": np.arange(6, dtype=np.int32),
        },
        "step": 7,
    }


def stock_restore(path: Path) -> Any:
    """The tree that the stock Orbax of today restores, with numpy arrays in place of jax's."""
    handler = ocp.PyTreeCheckpointHandler()
    structure, _ = handler._get_internal_metadata(epath.Path(path))
    restore_args = jax.tree.map(_restore_args, structure)
    with ocp.Checkpointer(handler) as checkpointer:
        return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=restore_args))


def _restore_args(leaf: Any) -> ocp.RestoreArgs:
    is_jax = getattr(leaf, "value_type", None) == "jax.Array"
    return ocp.RestoreArgs(restore_type=np.ndarray) if is_jax else ocp.RestoreArgs()
