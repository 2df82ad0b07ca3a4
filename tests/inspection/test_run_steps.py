"""The steps of a run in a bucket: only what has its marker is finished."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

import reshard
from tests.emulators.buckets import Bucket


def test_steps_in_a_bucket(gcs_bucket: Bucket) -> None:
    run = f"{gcs_bucket.url}/run"
    for step in (5, 10):
        reshard.save(run, {"w": np.ones(8, np.float32)}, step=step)
    gcs_bucket.store().put("run/15/_METADATA", b"{}")
    found = reshard.inspect_run(run)
    assert [(one.step, one.is_finished) for one in found] == [(5, True), (10, True), (15, False)]
    assert found[0].path == f"{run}/5"
    assert (found[2].files, found[2].nbytes) == (1, 2)
    assert found[0].files > 3 and found[0].nbytes > 32
    age = datetime.now(UTC) - (found[0].written_at or datetime.min.replace(tzinfo=UTC))
    assert abs(age) < timedelta(hours=1)
