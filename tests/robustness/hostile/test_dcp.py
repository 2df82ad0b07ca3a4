"""Distributed checkpoints of torch with random damage: they are read, or refused with an error of this project."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

import reshard
from reshard.errors import ReshardError
from tests.dcp_files import Item, archive, entry, rebuilt, tensor_entry, write_items
from tests.megatron.saved import unpack
from tests.pickled import Ordered, pickled
from tests.robustness.hostile.damage_ocdbt import damage_bytes
from tests.robustness.hostile.damage_pickle import damage_pickle

SEEDS = range(300)
SECONDS = 5.0
"""Processor time of one case; most take a hundredth of a second."""


def assert_harmless(folder: Path) -> bool:
    """Whether it is refused; it is read otherwise."""
    started = time.process_time()
    try:
        reshard.inspect(folder)
        reshard.restore(folder)
    except ReshardError as error:
        assert str(error).isprintable(), str(error)
        assert len(str(error)) < 5000
        return True
    finally:
        assert time.process_time() - started < SECONDS
        shutil.rmtree(folder)
    return False


@pytest.mark.parametrize("kind", [".metadata", "*.distcp"])
def test_damage_is_refused_or_harmless(specimens, tmp_path, kind):
    refused = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        folder = Path(shutil.copytree(specimens / "dcp", tmp_path / str(seed)))
        file = rng.choice(sorted(folder.glob(kind)))
        file.write_bytes(damage_bytes(rng, file.read_bytes(), rng.choice((1, 1, 3))))
        refused += assert_harmless(folder)
    assert len(SEEDS) // 5 < refused < len(SEEDS)


def test_metadata_that_lies_is_refused_or_harmless(specimens, tmp_path):
    refused = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        folder = Path(shutil.copytree(specimens / "dcp", tmp_path / str(seed)))
        data = (folder / ".metadata").read_bytes()
        (folder / ".metadata").write_bytes(damage_pickle(rng, data))
        refused += assert_harmless(folder)
    assert len(SEEDS) // 2 < refused < len(SEEDS)


def test_damage_of_megatrons_files_is_refused_or_harmless(tmp_path):
    """They are refused by restore in any case, for what only Megatron reads; here it is the error that counts."""
    step = unpack(tmp_path / "saved") / "0.13.1" / "flattened"
    for seed in SEEDS:
        rng = random.Random(seed)
        folder = Path(shutil.copytree(step, tmp_path / str(seed)))
        file = folder / rng.choice((".metadata", ".metadata", "metadata.json", "common.pt"))
        file.write_bytes(damage_bytes(rng, file.read_bytes(), rng.choice((1, 1, 3))))
        assert assert_harmless(folder)


def test_items_that_lie_are_refused_or_harmless(tmp_path):
    """The pickles in archives, with the right checksums."""
    value = pickled([1, {"a": (0.5, "x", None)}, Ordered({})])
    tensor = pickled(rebuilt("float32", (3, 4), (4, 1)))
    listed = {"w": tensor_entry("float32", (3, 4), [((0, 0), (3, 4))]), "v": entry(1)}
    refused = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        items = [
            Item("w", (0, 0), archive(damage_pickle(rng, tensor), bytes(48))),
            Item("v", None, archive(damage_pickle(rng, value))),
        ]
        refused += assert_harmless(write_items(tmp_path / str(seed), listed, items))
    assert len(SEEDS) // 2 < refused < len(SEEDS)
