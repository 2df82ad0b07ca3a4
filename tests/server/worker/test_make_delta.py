"""The child's work on a version: a delta, what an earlier attempt published, and the full version where no delta can be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.worker.convert import ProgressThrottle, publish_version

import reshard
from reshard.errors import MemoryBudgetError, PlanError, TargetExistsError

RNG = np.random.default_rng(5)
PARAMS = {"up": RNG.normal(size=(8, 4)).astype(np.float32), "down": np.arange(6.0)}
MAP = {
    "map": [
        {"from": "up", "to": "up.weight", "shape": "i o -> o i"},
        {"from": "down", "to": "down"},
    ]
}


def request_of(folder: Path, **more: Any) -> dict[str, Any]:
    members = {
        "layout": None,
        "select": (),
        "drop": (),
        "rename": (),
        "cast": (),
        "map": MAP,
        "sizes": None,
    }
    target = {"target": str(folder / "weight_v000002"), "reverse": False, **members}
    return {
        "delta": {
            "old": str(folder / "1"), "encoding": "xor", "checksum": "xxh3-128", "file_bytes": None,
            "base_version": None, "or_full": more.pop("or_full", False),
        },
        "source": str(folder / "2"), "targets": [target], "several": False, "unlisted": "leave",
        "max_memory": 64 << 20, "workers": 1, "max_growth": 4.0, "begun": False, **more,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "1", PARAMS)
    reshard.save(tmp_path / "2", {**PARAMS, "up": PARAMS["up"] + 1})
    return tmp_path


def publish(request: dict[str, Any]) -> dict[str, Any]:
    return publish_version(request, ProgressThrottle(lambda _: None))


def test_a_delta(folder: Path) -> None:
    made = publish(request_of(folder))
    [report] = made["reports"]
    assert (report["command"], report["version"], report["base_version"]) == (
        "delta",
        "000002",
        "000001",
    )
    assert ([t["name"] for t in report["tensors"]], made["read_bytes"]) == (["up.weight"], None)


def test_an_attempt_that_ended_after_it_published_is_repeated_for_its_report(folder: Path) -> None:
    first = publish(request_of(folder))
    with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
        publish(request_of(folder))
    again = publish(request_of(folder, begun=True))
    [before], [after] = first["reports"], again["reports"]
    assert {**before, "seconds": 0} == {**after, "seconds": 0}


def test_a_full_version_where_a_tensor_was_reshaped(folder: Path) -> None:
    reshard.save(folder / "3", {**PARAMS, "down": np.arange(7.0)})
    request = {**request_of(folder), "source": str(folder / "3")}
    with pytest.raises(PlanError, match="publish a full version"):
        publish(request)
    made = publish({**request, "delta": {**request["delta"], "or_full": True}})
    [report] = made["reports"]
    [warning] = report["warnings"]
    assert warning.startswith(
        "a full version was published, since no delta could be made: 'down' is "
    )
    assert report["command"] == "convert"
    found = reshard.restore(folder / "weight_v000002")
    np.testing.assert_array_equal(found["up.weight"], PARAMS["up"].T)
    # The attempt that published it may have ended before it was recorded.
    again = publish({**request, "delta": {**request["delta"], "or_full": True}, "begun": True})
    assert again["reports"][0]["already_done"]


def test_a_full_version_where_the_old_step_was_deleted(folder: Path) -> None:
    request = request_of(folder, or_full=True)
    request["delta"]["old"] = str(folder / "0")
    [report] = publish(request)["reports"]
    assert "does not exist" in report["warnings"][0]


def test_a_budget_that_is_too_small_is_refused_and_not_worked_around(folder: Path) -> None:
    with pytest.raises(MemoryBudgetError):
        publish(request_of(folder, or_full=True, max_memory=1 << 20))
    assert not (folder / "weight_v000002").exists()


def test_a_map_that_does_not_fit_is_refused_by_the_full_version_too(folder: Path) -> None:
    request = request_of(folder, or_full=True)
    request["targets"][0]["map"] = {"map": [{"from": "sideways", "to": "w"}]}
    with pytest.raises(PlanError, match="sideways"):
        publish(request)


def test_the_last_progress_says_that_all_was_compared(folder: Path) -> None:
    seen: list[dict[str, Any]] = []
    publish_version(request_of(folder), ProgressThrottle(seen.append, clock=lambda: 0.0))
    assert seen[-1]["stage"] == "comparing"
    assert seen[-1]["moved_bytes"] == seen[-1]["total_bytes"] > 0
    assert len(seen) <= 3
