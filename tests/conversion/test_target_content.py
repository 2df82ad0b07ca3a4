"""A target that is much larger than its source is refused before it is planned, if that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import PlanError

GIB = 1 << 30
WIDE: dict[str, Any] = {"map": {"map": [{"from": "w", "to": "w", "shape": "a -> a", "pad": {"a": "n"}}]}}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "a", {"w": np.ones(1024, np.float32)})
    return tmp_path / "a"


def wide(elements: int) -> dict[str, Any]:
    return {**WIDE, "sizes": {"n": elements}}


def test_the_bound_is_a_multiple_and_a_gibibyte(source: Path, tmp_path: Path) -> None:
    most = (16 * 4096 + GIB) // 4
    assert reshard.plan(source, max_growth=16, **wide(most)).tensors
    said = (
        "the target would have 1.00 GiB, but the source has 4.00 KiB, and a target may have at most 16 times as much and 1.00 GiB "
        "more (max_growth); make pad, repeated dimensions, fill and casts smaller, or raise max_growth"
    )
    with pytest.raises(PlanError) as raised:
        reshard.plan(source, max_growth=16, **wide(most + 1))
    assert str(raised.value) == said
    assert reshard.plan(source, **wide(most + 1)).tensors
    for call in (reshard.plan, reshard.convert):
        with pytest.raises(PlanError, match="max_growth"):
            call(source, tmp_path / "b", max_growth=16, **wide(1 << 40))
    targets = [reshard.Target(tmp_path / "b"), reshard.Target(tmp_path / "c", **wide(1 << 40))]
    for several in (reshard.plan_all, reshard.convert_all):
        with pytest.raises(PlanError, match="max_growth") as found:
            several(source, targets, max_growth=16)
        assert found.value.target == str(tmp_path / "c")
    assert not list(tmp_path.glob("[bc]"))


def test_casts_count(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.conversion.target_content.FREE_BYTES", 0)
    assert reshard.plan(source, max_growth=4, cast={"w": "float64"}).tensors
    with pytest.raises(PlanError, match=r"at most 1\.5 times as much and 0 B more"):
        reshard.plan(source, max_growth=1.5, cast={"w": "float64"})


@pytest.mark.parametrize("given", [0, -1, float("inf"), float("nan"), "16", True])
def test_what_is_no_bound(source: Path, given: Any) -> None:
    with pytest.raises(PlanError) as raised:
        reshard.plan(source, max_growth=given)
    assert str(raised.value) == (
        f"max_growth is {given!r}; expected a number above 0, such as 16, or None for no limit (max_growth)"
    )
