"""Conversions that use every strategy, and the tree that they convert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.orbax_trees import mesh, put

ROWS = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "rows|both", "axes": ["x"]}]}
COLUMNS = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "rows", "axes": [None, "x"]}]}


@dataclass(frozen=True)
class Case:
    """A conversion; ``strategies`` are those that it must have, as (tensor, strategy)."""

    source: str
    options: Mapping[str, Any]
    strategies: frozenset[tuple[str, str]] = field(default_factory=frozenset)


def case(source: str, *strategies: tuple[str, str], **options: Any) -> Case:
    return Case(source, {"workers": 2, "max_memory": "64MiB", **options}, frozenset(strategies))


CASES = {
    "scatter": case("raw", ("rows", "scatter"), layout=COLUMNS, chunk_bytes=16384),
    "weave": case("raw", ("both", "weave"), ("cols", "weave"), ("small", "whole"), layout=ROWS),
    "zstd": case(
        "raw", ("rows", "block"), ("both", "block"), compression="zstd", chunk_bytes=16384
    ),
    "copy": case("zstd", ("rows", "copy"), ("small", "copy"), compression="keep"),
    "cast": case("zstd", ("rows", "scatter"), cast=[("rows|cols", "bfloat16")], chunk_bytes=16384),
    "ocdbt": case("raw", ("cols", "block"), layout=ROWS, ocdbt=True, chunk_bytes=65536),
    "readback": case("raw", ("rows", "block"), layout=ROWS, check="readback"),
}

FORMS = {
    "one": case("raw", ("rows", "scatter"), ("both", "weave"), files="one", max_memory="9MiB"),
    "shards": case(
        "zstd", ("cols", "scatter"), files="shards", file_bytes="2MiB", max_memory="9MiB"
    ),
    "ranks": case("raw", ("rows", "block"), ("both", "weave"), files="ranks", layout=ROWS),
    "dcp": case("zstd", ("cols", "scatter"), files="dcp", layout=COLUMNS, max_memory="9MiB"),
    "distcp": case("zstd", ("cols", "scatter"), to="dcp", layout=COLUMNS, max_memory="9MiB"),
}
"""Targets whose chunks share files. Small tensors have copies in all files of "ranks"."""

CASES |= {
    name: replace(form, options={"to": "safetensors", **form.options})
    for name, form in FORMS.items()
}


CASES["tensorflow"] = case("raw", to="tensorflow", layout=ROWS, max_memory="9MiB")
"""Several files below the target's name."""

CASES["data files"] = case("zstd", to="tensorflow", file_bytes="3MB", max_memory="9MiB")
"""Of a size, which a tensor may cross."""

CASES["keras"] = case("zstd", ("cols", "scatter"), to="keras", layout=COLUMNS, max_memory="9MiB")

ENDINGS = {"keras": ".weights.h5"}
"""Of the names of targets that need one."""


def make_tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    line = mesh((8,), ("x",))
    return {
        "rows": put(rng.normal(size=(512, 1024)).astype(np.float32), "x", None, on=line),
        "cols": put(rng.normal(size=(1024, 512)).astype(np.float32), None, "x", on=line),
        "both": put(rng.normal(size=(512, 512)).astype(np.float32), "data", "model"),
        "small": np.arange(100, dtype=np.int32),
    }
