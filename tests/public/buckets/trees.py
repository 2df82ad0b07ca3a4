"""A tree of layers, a layout that splits it, and checkpoints of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import reshard
from tests.conformance.forms import Form
from tests.orbax_trees import save_pytree

LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "kernel", "axes": ["x"]}]}


def tree(layers: int) -> dict[str, Any]:
    return {
        f"layer_{i}": {
            "kernel": np.arange(24, dtype="float32").reshape(4, 6) + i,
            "bias": np.arange(6, dtype="int32"),
        }
        for i in range(layers)
    }


def in_form(folder: Path, form: Form, layers: int = 8) -> Path:
    """A local checkpoint of ``tree`` in one of the forms."""
    source = save_pytree(folder / f"saved{layers}", tree(layers))
    target = folder / f"local{layers}{form.ending}"
    reshard.convert(source, target, layout=LAYOUT, workers=1, **form.options)
    return target
