"""``verify`` compares each tensor with what the map makes of its sources. Without a map it uses the one that B records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from tests.orbax_trees import nested
from tests.public.convert.by_map.trained import EXPECTED, TREE


def test_verify_compares_with_what_the_map_makes(
    source: Path, map_file: Path, tmp_path: Path
) -> None:
    save_file(EXPECTED, tmp_path / "out.safetensors")
    found = reshard.verify(source, tmp_path / "out.safetensors", map=map_file)
    assert not found.differences
    assert found.map == "given"
    assert len(found.tensors) == len(EXPECTED)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            lambda t: t.update(
                {"layers.0.q.weight": t["layers.1.q.weight"], "layers.1.q.weight": t["layers.0.q.weight"]}
            ),
            ["layers.0.q.weight", "layers.1.q.weight"],
        ),
        (lambda t: t["layers.2.norm.weight"].__setitem__(3, 0.5), ["layers.2.norm.weight"]),
        (lambda t: t.pop("embed.weight"), ["embed.weight"]),
        (lambda t: t.update(more=np.zeros(2, np.float32)), ["more"]),
    ],
    ids=["layers swapped", "an element", "a tensor is missing", "a tensor too many"],
)  # fmt: skip
def test_verify_finds_what_a_script_did_wrong(
    source: Path, map_file: Path, tmp_path: Path, change: Any, names: list[str]
) -> None:
    made = {name: array.copy() for name, array in EXPECTED.items()}
    change(made)
    save_file(made, tmp_path / "out.safetensors")
    found = reshard.verify(source, tmp_path / "out.safetensors", map=map_file)
    assert sorted(t.name for t in found.tensors if t.is_difference) == names


def test_the_map_is_recorded_and_verify_uses_it(
    source: Path, map_file: Path, tmp_path: Path
) -> None:
    reshard.convert(source, tmp_path / "out", map=map_file, cast={"float32": "bfloat16"})
    found = reshard.verify(source, tmp_path / "out")
    assert found.map == "recorded"
    assert not found.differences
    text = (tmp_path / "out" / "slices.json").read_text()
    assert '"version": 2' in text
    plain = reshard.convert(source, tmp_path / "plain")
    assert plain.map is None
    assert '"version": 1' in (tmp_path / "plain" / "slices.json").read_text()


def test_a_recorded_map_that_makes_no_sense_is_no_traceback(source: Path, map_file: Path, tmp_path: Path) -> None:  # fmt: skip
    reshard.convert(source, tmp_path / "out", map=map_file)
    other = {**nested(TREE)}
    reshard.save(tmp_path / "other", other["params"])
    found = reshard.verify(tmp_path / "other", tmp_path / "out")
    assert found.differences
    assert "made of another tree" in " ".join(found.warnings)
