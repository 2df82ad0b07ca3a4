"""Killed between two requests and run again: nobody takes what is there for a checkpoint, and the same bytes come out.

A sample of the requests; all of them in a campaign.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.campaigns import every, singly
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call
from tests.robustness.buckets.cases import (
    CASES,
    SERVERS,
    TARGET,
    convert,
    emptied,
    files_of,
    is_taken_for_one,
    keys,
    nothing_is_left,
)
from tests.robustness.buckets.children import Awaited, start, without_clock

EVERY = every(11)
"""So many requests apart are those at which a run is killed; fewer in a campaign."""


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("bucket", "case"), singly(SERVERS, [*CASES]), indirect=["bucket"])
def test_killed_at_a_request_and_run_again(
    case: str, bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    convert(bucket, tiny, case)
    requests = bucket.emulator.log.count()
    assert bucket.emulator.log.count("complete_upload") == (2 if case == "parts" else 0)
    expected = files_of(bucket, tmp_path / "undisturbed")
    first = list(CASES).index(case) + (3 if bucket.scheme == "gs" else 0)
    for number in range(1 + first % EVERY, requests + 1, EVERY):
        emptied(bucket)
        awaited = Awaited()
        bucket.emulator.faults.add(Call(awaited.kill, done=True), nth=number)
        url = f"{bucket.url}/{TARGET}"
        child = start(bucket.environment, tiny, url, CASES[case], without_clock)
        awaited.is_this(child)
        assert child.ended() == -signal.SIGKILL, f"request {number} of {requests}"
        is_taken_for_one(bucket, tiny)
        was_committed = f"{TARGET}/commit_success.txt" in keys(bucket)
        report = convert(bucket, tiny, case)
        assert report.already_done == was_committed
        assert files_of(bucket, tmp_path / str(number)) == expected
        nothing_is_left(bucket)
