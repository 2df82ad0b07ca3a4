"""A script of the kind that people trust: layers apart, kernels turned, heads merged."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def script(source: Path, target: Path) -> None:
    """Converts one file."""
    tree = load_file(source)
    made = {"embed.weight": tree["embed"]}
    for n in range(tree["q"].shape[1]):
        q = tree["q"][:, n]
        made[f"layers.{n}.q"] = np.ascontiguousarray(q.reshape(len(q), -1).T)
        made[f"layers.{n}.up"] = np.ascontiguousarray(tree["wi"][n].T)
        made[f"layers.{n}.gate"] = np.ascontiguousarray(tree["wg"][n].T)
    save_file(made, target)


def convert(source: Path, target: Path) -> None:
    """Converts a folder with one file."""
    target.mkdir()
    script(source / "model.safetensors", target / "model.safetensors")
