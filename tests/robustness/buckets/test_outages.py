"""A store that was there and is away, or asks for fewer requests, is waited for; one that never answered is an error soon."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest

import reshard
from reshard.errors import StorageError
from reshard.storage.buckets import clients
from reshard.storage.buckets.clients import BucketSettings
from reshard.storage.location import locate
from tests.campaigns import every, singly
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Disconnect, Fault, Refuse
from tests.robustness.buckets.cases import SERVERS, convert, emptied, files_of, nothing_is_left

FAILURES = 60
"""Requests in a row; obstore gives up after ten of its own accord."""

OUTAGES: dict[str, Fault] = {"503 SlowDown": Refuse(answers.SLOW_DOWN), "away": Disconnect()}


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats without the pauses, so that no clock is waited for."""
    pause = timedelta(milliseconds=1)
    monkeypatch.setattr(
        clients, "LONG_BACKOFF", {"init_backoff": pause, "max_backoff": pause, "base": 2}
    )


@pytest.mark.usefixtures("_small", "_at_once")
@pytest.mark.parametrize(
    ("bucket", "case", "outage"), singly(SERVERS, ["raw", "parts"], [*OUTAGES]), indirect=["bucket"]
)
def test_a_run_outlasts_an_outage(
    case: str, outage: str, bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    """Whenever it begins: of all requests some are tried."""
    convert(bucket, tiny, case)
    requests = bucket.emulator.log.count()
    expected = files_of(bucket, tmp_path / "undisturbed")
    for number in range(1 + len(outage) % 9, requests, every(18)):
        emptied(bucket)
        rule = bucket.emulator.faults.add(OUTAGES[outage], nth=number, times=FAILURES)
        convert(bucket, tiny, case)
        assert rule.struck == FAILURES, number
        assert files_of(bucket, tmp_path / str(number)) == expected, number
        nothing_is_left(bucket)


@pytest.mark.usefixtures("_at_once")
def test_reading_outlasts_an_outage(bucket: Bucket, tiny: Path, tmp_path: Path) -> None:
    convert(bucket, tiny, "raw")
    rule = bucket.emulator.faults.add(Disconnect(), operation="get", key="rows/c", times=FAILURES)
    reshard.convert(f"{bucket.url}/run/7", tmp_path / "copy", workers=1)
    assert rule.struck == FAILURES
    assert reshard.verify(tmp_path / "copy", tiny).differences == 0


@pytest.mark.usefixtures("_at_once")
def test_a_process_that_only_writes_outlasts_an_outage(bucket: Bucket) -> None:
    """Such as a worker on another host. Its puts have a condition."""
    first, second = (locate(f"{bucket.url}/run/{name}") for name in "ab")
    first.write(b"one")
    rule = bucket.emulator.faults.add(Disconnect(), times=FAILURES)
    second.write(b"two")
    assert rule.struck == FAILURES
    assert second.open().read(0, 9) == b"two"


def test_a_store_that_never_answered_is_told_of_soon(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its endpoint may be wrong."""
    monkeypatch.setattr(clients, "SHORT_RETRIES", 2)
    bucket.emulator.faults.add(Refuse(answers.SLOW_DOWN), times=None)
    with pytest.raises(StorageError, match="and still did after all retries"):  # fmt: skip
        locate(f"{bucket.url}/run/7").status()
    assert bucket.emulator.log.count() == 3


def test_the_time_alone_ends_the_waiting() -> None:
    """Each pause is random below the one before times the base: by ln(base) - 1 greater on average, as a logarithm."""
    config = clients._retry_config(BucketSettings(), "long")
    assert config["retry_timeout"] == timedelta(seconds=180)
    backoff = config["backoff"]
    assert math.log(backoff["base"]) > 1
    assert config["max_retries"] > config["retry_timeout"] / backoff["init_backoff"]
