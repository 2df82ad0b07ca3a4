"""The two sides of a delta: whether OLD is a step or converted already, and what a map says must be equal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import reshard
from reshard.cli.app import run

SQUARE = np.arange(64, dtype=np.float32).reshape(8, 8)
TURNED = {"map": [{"from": "up", "to": "up", "shape": "i o -> o i"}]}
"""Gives a tensor of the same name, dtype and shape."""

TIED = {"map": [{"from": "up", "to": "up"}, {"from": "head", "same_as": "up"}]}


def steps(folder: Path) -> list[Path]:
    """Three steps of a run, of which each changes one element of the one before it."""
    made = []
    for step in range(3):
        square = SQUARE.copy()
        square[1, 2] += step
        reshard.save(folder / "run" / str(step), {"up": square})
        made.append(folder / "run" / str(step))
    return made


def test_a_map_that_turns_squares_is_applied_to_a_step_and_not_to_what_it_made(
    tmp_path: Path,
) -> None:
    run = steps(tmp_path)
    base = tmp_path / "v0"
    reshard.convert(run[0], base, to="safetensors", map=TURNED)
    deltas = [tmp_path / f"weight_v00000{n}" for n in (1, 2)]
    changed = [
        reshard.delta(old, new, delta, map=TURNED).changed
        for old, new, delta in zip((base, run[1]), run[1:], deltas, strict=True)
    ]
    assert changed == [1, 1]
    reshard.apply(base, deltas, tmp_path / "v2")
    (made,) = load_file(tmp_path / "v2" / "model.safetensors").values()
    wanted = SQUARE.T.copy()
    wanted[2, 1] += 2
    assert np.array_equal(made, wanted)


def test_safetensors_that_may_be_either_are_refused_unless_they_have_a_version(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file({"up": SQUARE + (name == "b")}, tmp_path / name / "model.safetensors")
    target = tmp_path / "weight_v000001"
    with pytest.raises(
        reshard.PlanError,
        match=r"a may be a step, or what the map and rules made of one: its names, dtypes and shapes fit both; convert the step to a folder with "
        r"the name of its version, such as weight_v000006, and give that",
    ):
        reshard.delta(tmp_path / "a", tmp_path / "b", target, map=TURNED)
    base = tmp_path / "weight_v000000"
    reshard.convert(tmp_path / "a", base, map=TURNED)
    reshard.delta(base, tmp_path / "b", target, map=TURNED)
    reshard.apply(base, [target], tmp_path / "v1")
    (made,) = load_file(tmp_path / "v1" / "model.safetensors").values()
    assert np.array_equal(made, SQUARE.T + 1)


def test_tensors_that_a_map_says_are_equal_are_compared(tmp_path: Path) -> None:
    run = [tmp_path / "0", tmp_path / "1"]
    reshard.save(run[0], {"up": SQUARE, "head": SQUARE})
    reshard.save(run[1], {"up": SQUARE + 1, "head": SQUARE})
    with pytest.raises(
        reshard.VerificationError,
        match=r"the map says that 'head' equals 'up' \(same_as\), but their digests differ",
    ):
        reshard.delta(run[0], run[1], tmp_path / "weight_v000001", map=TIED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_rules_are_not_applied_to_a_version_that_receivers_have(tmp_path: Path) -> None:
    run = steps(tmp_path)
    base = tmp_path / "weight_v000000"
    reshard.convert(run[0], base, to="safetensors")
    with pytest.raises(
        reshard.PlanError,
        match=r"'up' is float32 of shape \[8, 8\] in .*weight_v000000, but .*1 gives bfloat16 of shape \[8, 8\]; a delta changes bytes",
    ):
        reshard.delta(base, run[1], tmp_path / "weight_v000001", cast={"^up$": "bfloat16"})


def test_the_rules_of_a_layout_file_count(tmp_path: Path) -> None:
    """As for a conversion by the same file; what it says of axes splits nothing."""
    old, new = steps(tmp_path)[:2]
    layout = {
        "mesh": {"axes": ["m"], "shape": [2]},
        "rules": [{"match": ".*", "axes": ["m"]}],
        "rename": [{"match": "^(.*)$", "to": r"model.\1"}],
        "cast": [{"match": "float", "dtype": "bfloat16"}],
    }
    full, target = tmp_path / "weight_v000000", tmp_path / "weight_v000001"
    reshard.convert(old, full, to="safetensors", layout=layout)
    made = reshard.delta(full, new, target, layout=layout)
    assert made.tensors and all(name.startswith("model.") for name in made.tensors)
    assert {one.dtype for one in made.tensors.values()} == {"bfloat16"}
    reshard.convert(new, tmp_path / "full", to="safetensors", layout=layout)
    assert reshard.verify(full, tmp_path / "full", deltas=[target]).differences == 0
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(layout))
    words = ["delta", str(full), str(new), str(tmp_path / "x" / "weight_v000001"), "--layout", str(file), "--quiet"]  # fmt: skip
    assert run(words) == 0
