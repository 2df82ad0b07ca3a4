"""Numbers, times and names as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from reshard_server.pages import rendering


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.42, "0.4 s"), (9.96, "10.0 s"), (12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert rendering.duration_text(seconds) == text


def test_sizes_and_rates() -> None:
    assert [rendering.size_text(n) for n in (None, 0, 1536)] == ["–", "0 B", "1.50 KiB"]
    assert [rendering.rate_text(n) for n in (None, 0, 1536)] == ["–", "–", "1.50 KiB/s"]
    assert [rendering.percent_of(d, t) for d, t in ((0, 0), (999, 1000), (5, 5))] == [0, 99, 100]
    assert [rendering.error_text(e) for e in (0.0038866, "inf")] == ["0.0039", "inf"]


def test_shapes_meshes_and_axes() -> None:
    assert [rendering.shape_text(s) for s in ((), (2, 3))] == ["scalar", "2×3"]
    assert rendering.mesh_text(None) == "none"
    assert rendering.mesh_text({"axes": ["a", "b"], "shape": [2, 3]}) == "a=2, b=3"
    axes = (None, [], [None], ["a", None], [["a", "b"], None])
    assert [rendering.axes_text(a) for a in axes] == [
        "–", "replicated", "replicated", "[a, null]", "[[a, b], null]"
    ]  # fmt: skip


def test_times_are_in_utc() -> None:
    assert rendering.moment_text(datetime(2026, 11, 21, 3, tzinfo=UTC)) == "2026-11-21 03:00:00 UTC"


def test_a_remedy_is_told_once() -> None:
    assert rendering.without("no space; free some", "free some") == "no space"
    assert rendering.without("no space", None) == "no space"
    assert rendering.without("free some", "free some") == "free some"


def test_names_break_behind_slashes_and_stay_text() -> None:
    assert rendering.breakable("a/<b>/c&d") == "a/<wbr>&lt;b&gt;/<wbr>c&amp;d"
