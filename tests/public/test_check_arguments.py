"""Arguments that make no sense for any checkpoint are refused before one is looked at, in plan's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard import check_arguments
from reshard.errors import ReshardError

WRONG: tuple[dict[str, Any], ...] = (
    {"select": ["("]},
    {"drop": ["*"]},
    {"rename": [("[", "x")]},
    {"cast": [(".", "bfloat17")]},
    {"layout": {"select": ["("]}},
    {"layout": {"mesh": 3}},
    {"mesh": "data"},
    {"missing_axes": "drop"},
    {"compression": "lzma"},
    {"max_memory": "much"},
    {"chunk_bytes": 0},
    {"workers": 0},
    {"style": "v2"},
)


@pytest.mark.parametrize("arguments", WRONG, ids=lambda a: str(a))
def test_the_words_are_those_of_plan(tmp_path: Path, arguments: dict[str, Any]) -> None:
    source = tmp_path / "source"
    reshard.save(source, {"w": np.zeros((4, 4), np.float32)})
    with pytest.raises(ReshardError) as expected:
        reshard.plan(source, tmp_path / "target", **arguments)
    with pytest.raises(ReshardError) as found:
        check_arguments(**arguments)
    assert (type(found.value), str(found.value)) == (type(expected.value), str(expected.value))


def test_what_makes_sense_gives_the_limits() -> None:
    layout = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": ".", "axes": ["x"]}]}
    limits = check_arguments(
        layout=layout, cast=[(".", "bfloat16")], max_memory="64MiB", workers=3, compression="zstd:3"
    )
    assert (limits.max_memory, limits.workers) == (64 << 20, 3)
