"""A tree of layers, a layout that splits it, and checkpoints of it."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import reshard
from tests.conformance.forms import FORMS, Form
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
    """A local checkpoint of ``tree`` in one of the forms, which is made once."""
    made = Path(_made(form.id, layers).name)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder / f"local{form.ending}"


@cache
def _made(form_id: str, layers: int) -> tempfile.TemporaryDirectory[str]:
    form = next(form for form in FORMS if form.id == form_id)
    folder = tempfile.TemporaryDirectory()
    target = Path(folder.name, f"local{form.ending}")
    options = {"layout": LAYOUT, "workers": 1, **form.options}
    reshard.convert(_saved(layers).name + "/saved", target, **options)
    return folder


@cache
def _saved(layers: int) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    save_pytree(Path(folder.name, "saved"), tree(layers))
    return folder
