"""The memory of a distributed checkpoint before it is opened, by the values in it."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.formats.dcp import reader
from reshard.formats.dcp.reader import leaf_count
from reshard.storage.location import locate
from tests.dcp_files import Item, archive, entry, write_items
from tests.formats.dcp.small import LISTED, WHOLE, refusal


def _write(folder: Path, archives: list[bytes]) -> Path:
    items = [Item(f"v{number}", None, data) for number, data in enumerate(archives)]
    return write_items(folder, {item.name: entry(1) for item in items}, items)


def _saved(value: Any) -> bytes:
    return archive(pickle.dumps(value, 2))


def test_states_of_generators_are_counted(tmp_path: Path) -> None:
    """Each of Python's has 627 values; numpy's is not looked into."""
    states = []
    for seed in range(16):
        states += [_saved(random.Random(seed).getstate()), _saved(np.random.RandomState(seed).get_state())]  # fmt: skip
    folder = _write(tmp_path, states)
    leaves = len(reshard.inspect(folder).leaves)
    assert leaves == 16 * 627 + 16
    assert leaves <= leaf_count(locate(str(folder))) < 1.1 * leaves


@pytest.mark.parametrize("mib", [0.5, 8])
def test_a_large_object_is_one_leaf(tmp_path: Path, mib: float) -> None:
    array = np.zeros(int(mib * (1 << 20)), np.uint8)
    items = [WHOLE, Item("v", None, _saved(array))]
    folder = write_items(tmp_path / "x", {**LISTED, "v": entry(1)}, items)
    assert leaf_count(locate(str(folder))) < 20
    reshard.convert(folder, tmp_path / "y", to="orbax", drop=["v"], max_memory="64MiB")
    assert list(reshard.inspect(tmp_path / "y").tensors) == ["w"]


def test_values_beyond_what_is_read_count_by_their_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = [_saved(list(range(9000))) for _ in range(4)]
    folder = locate(str(_write(tmp_path, archives)))
    counted = leaf_count(folder)
    assert 4 * 9000 <= counted < 4 * 9000 + 100
    monkeypatch.setattr(reader, "_MOST_READ_BYTES", 2 * len(archives[0]))
    assert counted < leaf_count(folder) <= sum(map(len, archives))


def test_values_before_damage_are_counted(tmp_path: Path) -> None:
    """Opening it makes them before it comes to the damage."""
    damaged = bytearray(_saved(list(range(9000))))
    damaged[1000] ^= 1
    folder = _write(tmp_path, [_saved(list(range(9000))), bytes(damaged)])
    assert 9000 < leaf_count(locate(str(folder))) < 9100
    assert "has another CRC-32" in refusal(folder)
