"""All targets of a request in one call of the library: read once, and each target resumed or started over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reshard_server.worker.convert import ProgressThrottle, convert_all

import reshard
from reshard.errors import ResumeError
from reshard.storage.local.staging import staging_for
from tests.source_reads import Reads

OPTIONS = {"compression": "zstd", "chunk_bytes": "64KiB"}


def request(source: Path, *targets: dict[str, Any], begun: bool = False) -> dict[str, Any]:
    limits = {"max_memory": 256 << 20, "workers": 1, "max_growth": 16.0}
    return {
        "source": str(source), "unlisted": "leave", "targets": list(targets), "begun": begun, **limits,
    }  # fmt: skip


def nobody(_: dict[str, Any]) -> None:
    """Hears of the progress."""


class Halted(BaseException):
    """Ends a conversion in its midst."""


def stopped_after(moved_bytes: int) -> ProgressThrottle:
    """Ends the conversion once it has moved so much."""

    def tell(document: dict[str, Any]) -> None:
        if document["moved_bytes"] >= moved_bytes and document["stage"] == "copying":
            raise Halted

    return ProgressThrottle(tell, clock=iter(range(1 << 30)).__next__)


def test_the_source_is_read_once_for_all_targets(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [
        {"target": str(tmp_path / "a"), **OPTIONS},
        {"target": str(tmp_path / "b"), **OPTIONS, "check": "readback"},
    ]
    reads = Reads(monkeypatch)
    made = convert_all(request(small_source, *targets), ProgressThrottle(nobody))
    reports = made["reports"]
    monkeypatch.undo()
    assert [report["target"] for report in reports] == [target["target"] for target in targets]
    read = sum(
        stop - start
        for path, intervals in reads.intervals.items()
        if path.startswith(f"{small_source}/") and not Path(path).name.startswith(".")
        for start, stop in intervals
    )
    assert reports[0]["read_bytes"] == reports[1]["read_bytes"] > 0
    assert read < 1.5 * reports[0]["read_bytes"]
    assert made["read_bytes"] == reports[0]["read_bytes"]
    for name in "ab":
        assert not reshard.verify(small_source, tmp_path / name).differences


def test_every_target_is_resumed(slow_source: Path, tmp_path: Path) -> None:
    targets = [{"target": str(tmp_path / n), "chunk_bytes": "512KiB", "mesh": "x=2"} for n in "ab"]
    with pytest.raises(Halted):
        convert_all(request(slow_source, *targets), stopped_after(20 << 20))
    reports = convert_all(request(slow_source, *targets, begun=True), ProgressThrottle(nobody))[
        "reports"
    ]
    assert all(report["resumed_bytes"] > 0 for report in reports)
    assert [report["warnings"] for report in reports] == [reports[0]["warnings"]] * 2
    again = convert_all(request(slow_source, *targets, begun=True), ProgressThrottle(nobody))[
        "reports"
    ]
    assert all(report["already_done"] for report in again)


@pytest.mark.parametrize("number", [0, 1])
def test_only_the_target_that_cannot_be_resumed_is_started_over(
    number: int, slow_source: Path, tmp_path: Path
) -> None:
    targets = [{"target": str(tmp_path / n), "chunk_bytes": "512KiB"} for n in "ab"]
    with pytest.raises(Halted):
        convert_all(request(slow_source, *targets), stopped_after(20 << 20))
    other = [dict(target) for target in targets]
    other[number]["style"] = "v1"  # changes no chunk, so that the other one can be resumed
    with pytest.raises(ResumeError) as caught:
        convert_all(request(slow_source, *other), ProgressThrottle(nobody))
    assert caught.value.target == targets[number]["target"]
    assert staging_for(Path(targets[number]["target"])).journal.exists()
    reports = convert_all(request(slow_source, *other, begun=True), ProgressThrottle(nobody))[
        "reports"
    ]
    told = [any("could not be resumed" in w for w in report["warnings"]) for report in reports]
    assert told == [n == number for n in range(2)]
    assert [report["resumed_bytes"] > 0 for report in reports] == [n != number for n in range(2)]
    for target in targets:
        assert not reshard.verify(slow_source, target["target"]).differences
