"""Two records of the same code are equal; a comparison names each conversion that differs, and the lines."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

import reshard
from reshard.storage.local.store import LocalFile
from tests.recorded.record import Record, differences, read, record, write
from tests.recorded.uses import USES

OTHERS = ("restore: into", "stream: a slice", "verify: casts", "identify: dcp", "delta", "save")
REFUSED = "restore: refused, damage"
CHOSEN = {
    name: USES[name] for name in ("cast", "stopped: database", "stopped: to S3", *OTHERS, REFUSED)
}


@pytest.fixture(scope="module")
def recorded() -> Record:
    return record(CHOSEN)


def test_each_use_is_recorded(recorded: Record) -> None:
    assert recorded.keys() == CHOSEN.keys()
    cast = recorded["cast"]
    assert cast["convert"][-1] == "exit 0"
    assert {"_METADATA", "slices.json", "rows/zarr.json"} <= cast["files"].keys()
    assert "manifest.ocdbt: rows/c/0/0" in recorded["stopped: database"]["files"]
    for name in ("stopped: database", "stopped: to S3"):
        assert recorded[name]["stopped"][0] == "KeyboardInterrupt:"
        assert ' "resumed_bytes": 0,' not in recorded[name]["report"]["json"]


def test_what_is_read_of_each_source_is_recorded(recorded: Record) -> None:
    assert recorded["cast"]["read"].keys() == {"zstd"}
    assert recorded["delta"]["read"].keys() == {"base", "later"}
    assert recorded["save"]["read"] == {}
    assert 718_000 < recorded["stream: a slice"]["read"]["ranks"] < 719_000
    assert recorded[REFUSED]["refused"][0].startswith("CorruptError: ")
    assert not any("failed" in recorded[name] or "refused" in recorded[name] for name in OTHERS)


def test_what_is_read_again_is_told(recorded: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = LocalFile.fill
    monkeypatch.setattr(LocalFile, "fill", lambda *of: fill(*of) and fill(*of))
    for name in ("cast", "restore: into"):
        told = list(differences({name: recorded[name]}, record({name: USES[name]})))
        assert told[0] == f"{name}: read"
        assert [line[:3] for line in told[1:]] == ["  -", "  +"]


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
    again = record({name: USES[name]})
    assert list(differences({name: recorded[name]}, again)) == []


def test_a_change_of_the_code_is_told(recorded: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.conversion.convert.made_report", _no_report)
    name = "stopped: database"
    told = list(differences({name: recorded[name]}, record({name: USES[name]})))
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
