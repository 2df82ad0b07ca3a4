"""A small change in place: two deltas over a base in two files with an index, a record and an identity."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import reshard
from tests.delta_layout import bytes_of, changed, stored, write_full

RNG = np.random.default_rng(5)
LIKE = {f"t{n}": RNG.integers(0, 256, 70_000 + n, dtype=np.uint8) for n in range(2)}
V0 = bytes_of(LIKE)
V1 = changed(V0, 0.01, 1)
V2 = changed(V1, 0.5, 2) | {"t0": V1["t0"]}
INDEX = "model.safetensors.index.json"
SHARDS = {"t0": "model-00001-of-00002.safetensors", "t1": "model-00002-of-00002.safetensors"}
FILES = {*SHARDS.values(), INDEX, "slices.json"}


def prepare_case(work: Path) -> Path:
    """``base`` and two deltas over it, and nothing else."""
    work.mkdir()
    states = enumerate((V0, V1, V2))
    old, middle, new = (write_full(work / f"v{n}", state, LIKE) for n, state in states)
    reshard.delta(old, middle, work / "weight_v000001")
    reshard.delta(middle, new, work / "weight_v000002", encoding="overwrite")
    for folder in (old, middle, new):
        shutil.rmtree(folder)
    base = work / "base"
    base.mkdir()
    for name, file in SHARDS.items():
        save_file({name: LIKE[name]}, base / file)
    (base / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": SHARDS}))
    reshard.fingerprint(base)
    reshard.identify(base, write=True)
    return work


def apply_case(work: Path) -> reshard.InPlaceReport:
    deltas = [work / f"weight_v00000{number}" for number in (1, 2)]
    return reshard.apply_in_place(work / "base", deltas, workers=1)


def check_between(work: Path) -> str:
    """What is found of a base that may be between two versions: the old one, the new one, or a refusal.

    What other programs find is never a mixture: of both files none, or files of one version.
    """
    base = work / "base"
    found = stored(base)
    assert any(found.items() <= state.items() for state in (V0, V2))
    if (base / INDEX).exists():
        assert found in (V0, V2)
    try:
        assert reshard.inspect(base)
    except reshard.IncompleteCheckpointError as error:
        assert "is between two versions of its weights" in str(error)
        return "refused"
    return "old" if found == V0 else "new"


def check_ended(work: Path) -> None:
    """The base is the last version, its record fits, and nothing else is left."""
    base = work / "base"
    assert stored(base) == V2
    assert json.loads((base / INDEX).read_text())["metadata"] == {"version": "000002"}
    assert not reshard.verify(base).differences
    assert {path.name for path in base.iterdir()} == FILES
    assert {path.name for path in work.iterdir()} == {"base", "weight_v000001", "weight_v000002"}
