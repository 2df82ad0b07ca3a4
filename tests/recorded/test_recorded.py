"""Two records of the same code are equal; a comparison names each conversion that differs, and the lines."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

import reshard
from tests.recorded.conversions import CONVERSIONS
from tests.recorded.record import Record, differences, read, record, write

CHOSEN = {name: CONVERSIONS[name] for name in ("cast", "stopped: database", "stopped: to S3")}


@pytest.fixture(scope="module")
def recorded() -> Record:
    return record(CHOSEN)


def test_each_conversion_is_recorded(recorded: Record) -> None:
    assert recorded.keys() == CHOSEN.keys()
    cast = recorded["cast"]
    assert cast["convert"][-1] == "exit 0"
    assert {"_METADATA", "slices.json", "rows/zarr.json"} <= cast["files"].keys()
    assert "manifest.ocdbt: rows/c/0/0" in recorded["stopped: database"]["files"]
    for name in ("stopped: database", "stopped: to S3"):
        assert recorded[name]["stopped"][0] == "KeyboardInterrupt:"
        assert ' "resumed_bytes": 0,' not in recorded[name]["report"]["json"]


def test_two_records_of_the_same_code_are_equal(recorded: Record, tmp_path: Path) -> None:
    write(tmp_path / "record.json", recorded)
    assert list(differences(read(tmp_path / "record.json"), record(CHOSEN))) == []


def test_a_slow_machine_records_the_same(recorded: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(0, 3600)
    target = "reshard.storage.buckets"
    monkeypatch.setattr(f"{target}.segments.time", SimpleNamespace(monotonic=lambda: next(hours)))
    monkeypatch.setattr(f"{target}.lease.now_s", lambda: float(next(hours)))
    monkeypatch.setattr(f"{target}.transaction._TICK_S", 0.001)
    name = "stopped: to S3"
    again = record({name: CONVERSIONS[name]})
    assert list(differences({name: recorded[name]}, again)) == []


def test_a_change_of_the_code_is_told(recorded: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.conversion.convert.made_report", _no_report)
    name = "stopped: database"
    told = list(differences({name: recorded[name]}, record({name: CONVERSIONS[name]})))
    assert f"{name}: failed" in told
    assert "  +ReshardError: no report" in told
    assert f"{name}: files" in told


def _no_report(*_: object) -> None:
    raise reshard.ReshardError("no report")


def test_changed_bytes_and_words_are_told(recorded: Record) -> None:
    changed = copy.deepcopy(recorded)
    changed["cast"]["files"]["_METADATA"] = "0" * 64
    changed["cast"]["plan"][0] = "another line"
    before = recorded["cast"]
    assert list(differences(recorded, changed)) == [
        "cast: files",
        f"  -_METADATA: {before['files']['_METADATA']}",
        f"  +_METADATA: {'0' * 64}",
        "cast: plan",
        f"  -{before['plan'][0]}",
        "  +another line",
    ]
