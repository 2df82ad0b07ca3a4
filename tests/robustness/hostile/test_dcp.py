"""Distributed checkpoints of torch with random damage: they are read, or refused with an error of this project."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

import reshard
from reshard.errors import ReshardError
from tests.robustness.hostile.damage_ocdbt import damage_bytes

SEEDS = range(300)
SECONDS = 5.0
"""Processor time of one case; most take a hundredth of a second."""


@pytest.mark.parametrize("kind", [".metadata", "*.distcp"])
def test_damage_is_refused_or_harmless(specimens, tmp_path, kind):
    refused = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        folder = Path(shutil.copytree(specimens / "dcp", tmp_path / str(seed)))
        file = rng.choice(sorted(folder.glob(kind)))
        file.write_bytes(damage_bytes(rng, file.read_bytes(), rng.choice((1, 1, 3))))
        started = time.process_time()
        try:
            reshard.inspect(folder)
            reshard.restore(folder)
        except ReshardError as error:
            refused += 1
            assert str(error).isprintable(), str(error)
        assert time.process_time() - started < SECONDS
    assert len(SEEDS) // 5 < refused < len(SEEDS)
