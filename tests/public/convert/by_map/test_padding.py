"""Dimensions that are padded or cropped wherever a shape has them: alone, merged, split, stacked, and behind parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard

A = np.arange(6, dtype=np.float32).reshape(3, 2)
ROW = A.reshape(1, 6)
LAYERS = {f"w.{n}": A + 10 * n for n in range(2)}
FUSED = {"w": np.arange(8, dtype=np.float32).reshape(2, 2, 2), "u": A + 20}


def beside(before: int, after: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """So many rows and columns of padding."""
    return (0, before), (0, after)


CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, int], Any]] = [
    ({"w": ROW}, {"shape": "d c -> c d", "pad": {"d": 2}}, {}, np.pad(ROW.T, beside(0, 1))),
    ({"w": ROW}, {"shape": "d c -> (d c)", "pad": {"d": 2}}, {}, np.pad(ROW, beside(1, 0)).ravel()),
    ({"w": A}, {"shape": "a b -> (a b)", "pad": {"a": 5}}, {}, np.pad(A, beside(2, 0)).ravel()),
    ({"w": A}, {"shape": "a b -> (a b)", "pad": {"b": 5}}, {}, np.pad(A, beside(0, 3)).ravel()),
    ({"w": A}, {"shape": "a b -> (b a)", "pad": {"a": 5}}, {}, np.pad(A, beside(2, 0)).T.ravel()),
    ({"w": A}, {"shape": "a b -> (a b)", "pad": {"a": 4, "b": 3}}, {}, np.pad(A, beside(1, 1)).ravel()),
    ({"w": A}, {"shape": "a b -> (a b)", "crop": {"b": 1}}, {}, A[:, :1].ravel()),
    ({"w": A[:, 0]}, {"shape": "a -> (a r)", "pad": {"r": 3}}, {"r": 2}, np.pad(A[:, :1].repeat(2, 1), beside(0, 1)).ravel()),
    ({"w": A.ravel()}, {"shape": "(a b) -> a b", "pad": {"a": 5}}, {"b": 2}, np.pad(A, beside(2, 0))),
    ({"w": A.ravel()}, {"shape": "(a b) -> a b", "crop": {"a": 2}}, {"b": 2}, A[:2]),
    ({"w": A.ravel()}, {"shape": "(a b) -> (a b)", "pad": {"b": 3}}, {"b": 2}, np.pad(A, beside(0, 1)).ravel()),
    (LAYERS, {"from": "w.{l}", "shape": "a b -> (l a) b", "pad": {"l": 3}}, {}, np.concatenate([A, A + 10, 0 * A])),
    (LAYERS, {"from": "w.{l}", "shape": "a b -> (l a) b", "crop": {"l": 1}}, {}, A),
    (FUSED, {"from": ["w", "u"], "shape": "a b d, c d -> ([a b | c] d)", "pad": {"a": 3}}, {}, np.r_[np.arange(8), [0] * 4, A.ravel() + 20]),
    (FUSED, {"from": ["w", "u"], "shape": "a b d, c d -> ([a b | c] d)", "pad": {"d": 3}}, {}, np.pad(np.r_[np.arange(8), A.ravel() + 20].reshape(7, 2), beside(0, 1)).ravel()),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "rule", "sizes", "made"), CASES)
def test_what_is_padded_and_cropped(
    tmp_path: Path, arrays: Any, rule: Any, sizes: Any, made: Any
) -> None:
    reshard.save(tmp_path / "source", arrays)
    given = {"map": [{"from": "w", "to": "t", **rule}]}
    reshard.convert(tmp_path / "source", tmp_path / "made", map=given, sizes=sizes)
    found = reshard.restore(tmp_path / "made")["t"]
    assert found.shape == made.shape
    assert found.tobytes() == made.astype(np.float32).tobytes()


@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
def test_a_fill_that_json_lacks_is_recorded(tmp_path: Path, fill: float) -> None:
    reshard.save(tmp_path / "source", {"w": A})
    rule = {"from": "w", "to": "t", "shape": "a b -> a b", "pad": {"b": 3}, "fill": fill}
    reshard.convert(tmp_path / "source", tmp_path / "made", map={"map": [rule]})
    np.testing.assert_array_equal(reshard.restore(tmp_path / "made")["t"][:, 2], [fill] * 3)
    assert not reshard.verify(tmp_path / "source", tmp_path / "made").differences
