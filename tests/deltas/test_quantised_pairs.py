"""A quantised weight and its scales are two tensors: a delta that lost one of them is found, however it was lost."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import reshard
from reshard.errors import PlanError, VerificationError
from tests.delta_layout import CHECKSUMS, stored

WEIGHT, SCALE = "mlp.down_proj.weight", "mlp.down_proj.weight_scale_inv"
INDEX = "model.safetensors.index.json"
FILE = "model-00000-of-00001.safetensors"


def pair(step: float) -> dict[str, np.ndarray]:
    """A weight in blocks of 128 by 128, and the scale of each."""
    made = np.linspace(-400, 400, 256 * 256).reshape(256, 256) * step
    return {WEIGHT: made.astype(ml_dtypes.float8_e4m3fn), SCALE: np.full((2, 2), step, "f4")}


def save(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    save_file(arrays, folder / "model.safetensors")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two versions and the delta, which changes both halves."""
    reshard.delta(
        save(tmp_path / "v0", pair(1.0)),
        save(tmp_path / "v1", pair(0.5)),
        tmp_path / "weight_v000001",
    )
    return tmp_path


def test_rules_that_leave_out_a_half_make_no_delta(run: Path) -> None:
    with pytest.raises(PlanError) as error:
        reshard.delta(run / "v0", run / "v1", run / "weight_v000002", select=["weight$"])
    assert str(error.value) == (
        f"'{WEIGHT}' would be kept without '{SCALE}': '{WEIGHT}' holds codes (fp8, blocks of 128×128), which mean nothing without '{SCALE}'; keep "
        "both, or leave both out (select, drop)"
    )
    assert not (run / "weight_v000002").exists()


def test_rules_that_leave_out_other_weights_make_a_delta_of_the_pair(tmp_path: Path) -> None:
    for name, step in (("v0", 1.0), ("v1", 0.5)):
        save(tmp_path / name, {**pair(step), "norm.weight": np.ones(256, "f4")})
    target = tmp_path / "weight_v000002"
    made = reshard.delta(tmp_path / "v0", tmp_path / "v1", target, drop=["norm"], base_version=0)
    assert made.warnings == (
        f"the rules leave out 1 of the 3 tensors of {tmp_path / 'v0'} too, and the delta is of the others alone: it does not fit that folder as it is, "
        "only what a conversion by the same rules makes of it",
    )
    with pytest.raises(VerificationError) as error:
        reshard.apply(tmp_path / "v0", [target], tmp_path / "served")
    assert str(error.value) == (
        f"{tmp_path / 'v0'} is not the base of {target}: it has 'norm.weight', which the delta does not record; give the version 000000, or publish a "
        "full version, and start from that"
    )


@pytest.mark.parametrize("gone", [WEIGHT, SCALE])
def test_the_delta_lost_the_payload_of_a_half(run: Path, gone: str) -> None:
    """The other half alone would give weights that nobody trained."""
    delta = run / "weight_v000001"
    data = (delta / FILE).read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    payloads = load_file(delta / FILE)
    del payloads[gone], metadata[gone]
    save_file(payloads, delta / FILE, metadata=metadata)
    index = json.loads((delta / INDEX).read_text())
    del index["weight_map"][gone], index["metadata"]["changed"][gone]
    (delta / INDEX).write_text(json.dumps(index))
    with pytest.raises(VerificationError) as error:
        reshard.apply(run / "v0", [delta], run / "served")
    found, recorded = (CHECKSUMS["xxh3-128"](stored(run / name)[gone]) for name in ("v0", "v1"))
    assert str(error.value) == (
        f"tensor '{gone}', chunk [0, 0], version 000001: its bytes have the xxh3-128 {found}, but {recorded} is recorded, which the delta does not "
        "change: the base is another one, or it is damaged; give the right base, restore it from a copy, or start from a full version"
    )
    assert not (run / "served").exists()
