"""The memory that making and applying a delta takes, in fresh processes, beside tensors that do not fit it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.fresh_process import run_fresh

MIB = 1 << 20
BUDGET = 48
ALLOWED_BESIDE = 128 * MIB
DELTA = f"""
    import sys
    import reshard
    reshard.delta(*sys.argv[1:], max_memory="{BUDGET}MiB", workers=2)
"""
APPLY = f"""
    import sys
    import reshard
    base, delta, target = sys.argv[1:]
    reshard.apply(base, [delta], target, max_memory="{BUDGET}MiB", workers=2)
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of 160 MiB, a tensor of 128 MiB among them."""
    folder = tmp_path_factory.mktemp("versions")
    rng = np.random.default_rng(0)
    old = {"large": rng.integers(0, 256, (32, 4 * MIB), dtype=np.uint8), **{f"t{n}": rng.integers(0, 256, 16 * MIB, dtype=np.uint8) for n in range(2)}}  # fmt: skip
    for name in ("old", "new"):
        (folder / name).mkdir()
        save_file(old, folder / name / "model.safetensors")
        for array in old.values():
            array.reshape(-1)[:: array.size // 1000] += 1
    return folder


def test_both_stay_within_the_budget(versions: Path) -> None:
    old, new, delta = versions / "old", versions / "new", versions / "weight_v000001"
    made = run_fresh(DELTA, str(old), str(new), str(delta))
    applied = run_fresh(APPLY, str(old), str(delta), str(versions / "served"))
    most = BUDGET * MIB + ALLOWED_BESIDE
    assert made.peak_bytes < most
    assert applied.peak_bytes < most
