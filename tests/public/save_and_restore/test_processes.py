"""Two processes of four devices save together; one of 8, two of 4 and four of 2 restore."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from tests.campaigns import rarely
from tests.process_groups import run_group
from tests.public.save_and_restore import pieces

pytestmark = pytest.mark.xdist_group("live-processes")


def run_members(count: int, path: Path, *words: str) -> list[dict[str, Any]]:
    """What each of ``count`` processes found."""
    program = ["-m", "tests.public.save_and_restore.group_member"]
    printed = run_group(count, program, str(path), *words)
    return [json.loads(lines.splitlines()[-1]) for lines in printed]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where two processes saved, and what the two of them restored."""
    root = tmp_path_factory.mktemp("live")
    found = run_members(2, root / "checkpoint", "save")
    yield root / "checkpoint", found
    shutil.rmtree(root)


@pytest.mark.parametrize("count", rarely([2, 4]))
def test_each_process_of_a_group_restores_its_part_bit_by_bit(saved, count):
    path, found = saved
    if count != 2:
        found = run_members(count, path)
    whole = 4 * int(np.prod(pieces.SHAPE))
    for process in found:
        assert all(process["right"].values())
        assert process["places"] == [8] * 4
        assert process["shards"] == [8 // count] * 4
        assert process["table"] == ["mod", True]
        assert process["step"] == 3
        # Rows, columns and both: a part each of what is split; the replicated: all of it. And the step.
        assert process["read"] == process["needed"]
        assert abs(process["needed"] - (3 * whole // count + whole)) <= 64


def test_one_process_of_eight_devices_restores_it(saved):
    path, _ = saved
    layouts = pieces.layouts(reshard.DeviceMesh((4, 2), ("data", "model"), jax.devices()))
    found = reshard.restore(path, layout=layouts, drop=["table"])
    for name, values in pieces.arrays().items():
        assert found[name].sharding.is_equivalent_to(layouts[name].backend_layout, 2)
        np.testing.assert_array_equal(found[name], values, strict=True)
    assert reshard.verify(path).differences == 0


def test_stock_orbax_restores_it(saved):
    path, _ = saved
    found = ocp.StandardCheckpointer().restore(path)
    for name, values in pieces.arrays().items():
        np.testing.assert_array_equal(np.asarray(found[name]), values)
    np.testing.assert_array_equal(np.asarray(found["table"]), pieces.TABLE)
