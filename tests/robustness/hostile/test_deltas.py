"""Deltas whose index, headers and payloads were damaged: one error, or what the delta makes; never other bytes, a traceback or a part of a target.

A sample; more with ``RESHARD_TESTS_DELTAS=5000``.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import reshard
from reshard.errors import ReshardError
from tests.delta_layout import bytes_of, changed, stored, write_full
from tests.robustness.hostile.damage_json import damage_json_file
from tests.robustness.hostile.damage_ocdbt import damage_bytes
from tests.robustness.hostile.damage_safetensors import damage_header
from tests.robustness.hostile.operations import LONGEST_MESSAGE
from tests.skyrl_layout import write_skyrl

COUNT = int(os.environ.get("RESHARD_TESTS_DELTAS", "80"))
LIKE = {
    "a": np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8),
    "b": np.arange(500, dtype="f4"),
    "same": np.arange(100, dtype="f4"),
}
OLD = bytes_of(LIKE)
NEW = changed(OLD, 0.02, 1) | {"same": OLD["same"]}
NAME = "weight_v000001"
UNDAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What the damaging of a file that is damaged already may raise."""


def damage(rng: random.Random, delta: Path) -> None:
    """Damages one of its files, or two."""
    for _ in range(rng.choice((1, 1, 2))):
        file = rng.choice(sorted(delta.iterdir()))
        as_json = damage_json_file if file.suffix == ".json" else damage_header
        try:
            if rng.random() < 0.6:
                as_json(rng, file)
            else:
                file.write_bytes(damage_bytes(rng, file.read_bytes(), rng.choice((1, 2, 10))))
        except UNDAMAGED:
            continue


def outcome(act: Callable[[], object]) -> str:
    """``ok``, or the kind of its error, which is a short text; other errors are raised."""
    try:
        act()
    except ReshardError as error:
        assert len(str(error)) < LONGEST_MESSAGE
        return type(error).__name__
    return "ok"


def test_damaged_deltas(tmp_path: Path) -> None:
    old, new = (write_full(tmp_path / f"v{n}", state, LIKE) for n, state in enumerate((OLD, NEW)))
    for kind in ("xor", "overwrite"):
        reshard.delta(old, new, tmp_path / kind / NAME, file_bytes=10, encoding=kind)
    kinds = {name: (str(array.dtype), list(array.shape)) for name, array in LIKE.items()}
    write_skyrl(tmp_path / "skyrl", 1, OLD, NEW, kinds)
    run, target = tmp_path / "run", tmp_path / "made" / "served"
    applied: Counter[str] = Counter()
    for seed in range(COUNT):
        rng = random.Random(seed)
        shutil.copytree(tmp_path / rng.choice(("xor", "overwrite", "skyrl")), run)
        (delta,) = run.iterdir()
        damage(rng, delta)
        said = outcome(partial(reshard.apply, old, [delta], target, max_memory="96MiB"))
        assert (said == "ok") == target.exists(), seed
        if said == "ok":
            assert stored(target) == NEW, seed
        else:
            assert not any(target.parent.glob("*")), seed
        applied[said] += 1
        outcome(partial(reshard.verify, old, deltas=[delta]))
        outcome(partial(reshard.clean_versions, run, 1, dry_run=True))
        outcome(partial(reshard.inspect_versions, run))
        shutil.rmtree(run)
        shutil.rmtree(target.parent, ignore_errors=True)
    assert applied["CorruptError"] > COUNT / 2
    assert applied["ok"]
