"""State dicts of torch.save with random damage: they are read, or refused with an error of this project."""

from __future__ import annotations

import random
import time
from pathlib import Path
from zipfile import ZipFile

import numpy as np

import reshard
from reshard.errors import ReshardError
from tests.pickled import Ordered
from tests.robustness.hostile.damage_ocdbt import damage_bytes
from tests.robustness.hostile.damage_pickle import damage_pickle
from tests.state_files import View, packed, state_archive, write_state

SEEDS = range(300)
SECONDS = 5.0
"""Processor time of one case; most take a hundredth of a second."""

FLAT = np.arange(12, dtype=np.float32)
TREE = {
    "model": Ordered({"w": View(FLAT, "0", 0, (3, 4), (4, 1)), "t": View(FLAT, "0", 2, (4, 2), (1, 4))}),
    "opt": {"lr": 0.5, "name": "adam", "state": [1, None, {}]},
}  # fmt: skip


def assert_harmless(file: Path) -> bool:
    """Whether it is refused; it is read otherwise."""
    started = time.process_time()
    try:
        reshard.inspect(file)
        reshard.restore(file)
        reshard.verify(file)
    except ReshardError as error:
        assert str(error).isprintable(), str(error)
        assert len(str(error)) < 5000
        return True
    finally:
        assert time.process_time() - started < SECONDS
        file.unlink()
    return False


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    data = state_archive(TREE)
    refused = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        file = tmp_path / "x.pt"
        file.write_bytes(damage_bytes(rng, data, rng.choice((1, 1, 3))))
        refused += assert_harmless(file)
    assert len(SEEDS) // 5 < refused < len(SEEDS)


def test_pickles_that_lie_are_refused_or_harmless(tmp_path: Path) -> None:
    """With the right checksums."""
    pickled = pickle_of(tmp_path)
    refused = 0
    for seed in SEEDS:
        file = tmp_path / "x.pt"
        file.write_bytes(packed(damage_pickle(random.Random(seed), pickled), {"0": FLAT.tobytes()}))
        refused += assert_harmless(file)
    assert len(SEEDS) // 2 < refused < len(SEEDS)


def pickle_of(folder: Path) -> bytes:
    file = write_state(folder / "sound.pt", TREE)
    with ZipFile(file) as archive:
        return archive.read("archive/data.pkl")
