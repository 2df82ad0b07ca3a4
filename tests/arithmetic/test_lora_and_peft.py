"""Merged adapters of every kind against peft's own merge, in an environment of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from reshard.arithmetic.asked import computed
from reshard.checkpoint import OpenedCheckpoint
from reshard.formats.registry import CheckpointPath
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")

LINEAR = {"r": 4, "lora_alpha": 6, "target_modules": ["q", "o"]}
ALL = {**LINEAR, "target_modules": ["q", "o", "embed", "conv", "gpt"]}
EXPERTS = {**LINEAR, "target_modules": ["q"], "target_parameters": ["experts.up", "experts.down"]}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"configs": [LINEAR]},
    "in_float32": {"configs": [LINEAR], "dtype": "float32"},
    "in_float16": {"configs": [LINEAR], "dtype": "float16"},
    "every_layer": {"configs": [ALL]},
    "rslora": {"configs": [{**ALL, "use_rslora": True}]},
    "patterns": {
        "configs": [{**LINEAR, "rank_pattern": {"layers.1.q": 3, "o": 2}, "alpha_pattern": {r"layers\.0\..*": 9, "1.o": 5}}],
    },
    "dora": {"configs": [{**ALL, "use_dora": True}]},
    "trained_biases": {"configs": [{**LINEAR, "bias": "all"}]},
    "biases_of_layers": {"configs": [{**LINEAR, "bias": "lora_only"}]},
    "lora_bias": {"configs": [{**LINEAR, "target_modules": ["q"], "lora_bias": True}]},
    "modules_to_save": {"configs": [{**LINEAR, "modules_to_save": ["head", "conv"]}]},
    "experts": {"configs": [EXPERTS]},
    "experts_in_float32": {"configs": [EXPERTS], "dtype": "float32"},
    "turned_experts": {"configs": [EXPERTS], "is_transposed": True},
    "two": {"configs": [ALL, {**ALL, "r": 5, "use_rslora": True, "fan_in_fan_out": True}]},
    "two_of_dora": {"configs": [{**LINEAR, "use_dora": True}] * 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def merged(torch: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    torch.ask("merge_adapters", folder=str(folder), cases=CASES)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_merge_is_that_of_peft(merged: Path, case: str) -> None:
    place = merged / case
    adapters = [place / f"a{number}" for number in range(len(CASES[case]["configs"]))]
    chosen = computed(CheckpointPath.at(str(place / "base")), lora=adapters)
    found = OpenedCheckpoint(chosen).restore()
    wanted, base = load_file(place / "merged.safetensors"), load_file(place / "base/model.safetensors")  # fmt: skip
    assert found.keys() == wanted.keys()
    # peft multiplies in float32, rounds some products to the weight's dtype, and each of several adapters by itself.
    is_rough = len(adapters) > 1 or CASES[case].get("dtype") == "float32"
    changed = 0
    for name, want in wanted.items():
        assert found[name].dtype == want.dtype
        eps = float(ml_dtypes.finfo(want.dtype).eps)
        mine, want, old = (x.astype(np.float64) for x in (found[name], want, base[name]))
        size = np.maximum(np.abs(old), np.maximum(np.abs(want), np.abs(want - old)))
        assert (np.abs(mine - want) <= (32 if is_rough else 1) * eps * size).all(), name
        rounds_twice = is_rough or name.startswith(("embed", "experts"))
        assert np.mean(mine == want) > (0.4 if rounds_twice else 0.99), name
        changed += not np.array_equal(want, old)
    assert changed >= 2
