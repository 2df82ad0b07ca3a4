"""Schedules that watch a training run in a bucket: by the marker, with few requests, and nothing half-deleted is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import obstore
import pytest
from reshard_server.db.conversions import claims
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules.loop import run_now

import reshard
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.server.bucket_roots import EACH_CLOUD, MARKER, PREFIX, delete, keys_below, mark, put
from tests.server.claimed import claimed
from tests.server.schedules.bench import Bench
from tests.server.schedules.carrying_out import carry_out

TO_DISK: dict[str, Any] = {"targets": [{"target": "other/out/{step}"}], "token": "root"}


@pytest.fixture
def in_bucket(bench: Bench, root_url: str) -> Bench:
    """The root ``data`` is in a bucket, and ``other`` is a folder."""
    roots = {"data": root_url, "other": str(bench.folder / "other")}
    bench.one = bench.process("two", roots=roots)
    return bench


def requests(bucket: Bucket, bench: Bench) -> int:
    """What one look costs."""
    bucket.emulator.log.clear()
    bench.tick()
    return bucket.emulator.log.count()


def fail(bench: Bench, key: str, **error: Any) -> None:
    claim = claimed(bench.db, bench.conversion(key).id)
    assert claims.finish(bench.db, claim, "failed", error=error)
    bench.settle()


@EACH_CLOUD
def test_only_steps_with_their_marker(in_bucket: Bench, bucket: Bucket) -> None:
    in_bucket.put(**TO_DISK)
    in_bucket.tick()  # no step yet
    assert in_bucket.told() == {}
    mark(bucket, "run/100", "run/7.orbax-checkpoint-tmp-1", "run/8", markers=())
    mark(bucket, "run/1000", "run/odd", "runs/9")
    in_bucket.tick()
    assert in_bucket.told() == {"1000": "started"}
    put(bucket, f"run/100/{MARKER}")
    in_bucket.tick()
    assert in_bucket.told() == {"1000": "started", "100": "started"}
    made = in_bucket.conversion("100")
    assert (made.request.source, made.state) == ("data/run/100", "queued")
    assert [run.detail for run in in_bucket.runs()] == [None, None]
    assert in_bucket.held() == []


def test_the_newest_only(in_bucket: Bench, bucket: Bucket) -> None:
    in_bucket.put(
        when={"directory": "data/run", "poll_seconds": 0.2, "newest_only": True}, **TO_DISK
    )
    mark(bucket, "run/1", "run/2")
    mark(bucket, "run/3", markers=())
    in_bucket.tick()
    assert in_bucket.told() == {"1": "skipped", "2": "started"}


def test_a_thousand_steps_take_few_requests(in_bucket: Bench, bucket: Bucket) -> None:
    store = bucket.store()
    for step in range(1000):
        obstore.put(store, f"{PREFIX}/run/{step}/{MARKER}", b"", use_multipart=False)
    in_bucket.put(when={"directory": "data/run", "poll_seconds": 0.2, "first_step": 990}, **TO_DISK)
    assert requests(bucket, in_bucket) <= 12  # a listing, and a look at each new step
    assert len(in_bucket.told()) == 10
    assert requests(bucket, in_bucket) == 1
    mark(bucket, "run/1000", markers=())
    assert requests(bucket, in_bucket) == 3  # 1,001 names are two pages; one step is not finished
    put(bucket, f"run/1000/{MARKER}")
    assert requests(bucket, in_bucket) == 3
    assert requests(bucket, in_bucket) == 2
    assert len(in_bucket.told()) == 11


def test_a_full_queue_asks_for_no_markers(in_bucket: Bench, bucket: Bucket, root_url: str) -> None:
    roots = {"data": root_url, "other": str(in_bucket.folder / "other")}
    in_bucket.one = in_bucket.process("three", roots=roots, queued_per_token=2)
    in_bucket.put(**TO_DISK)
    mark(bucket, *(f"run/{step}" for step in range(40)))
    assert requests(bucket, in_bucket) == 17  # a listing, and the first sixteen
    assert in_bucket.told() == {"0": "started", "1": "started"}
    assert requests(bucket, in_bucket) == 1


@EACH_CLOUD
@pytest.mark.parametrize(
    "error", ["SourceChangedError", "MissingError", "IncompleteCheckpointError"]
)
def test_a_step_that_vanishes_while_it_is_read_is_gone(
    in_bucket: Bench, bucket: Bucket, error: str
) -> None:
    in_bucket.put(**TO_DISK)
    mark(bucket, "run/1")
    in_bucket.tick()
    delete(bucket, "run/1/_METADATA")  # its marker may be the last to go
    fail(in_bucket, "1", error=error, status=422)
    [run] = in_bucket.runs()
    assert (run.outcome, run.detail) == ("gone", "it was deleted while it was read")


def test_a_step_without_its_marker_is_gone(in_bucket: Bench, bucket: Bucket) -> None:
    in_bucket.put(**TO_DISK)
    mark(bucket, "run/1")
    in_bucket.tick()
    delete(bucket, f"run/1/{MARKER}")
    fail(in_bucket, "1", error="StorageError", status=422)
    assert in_bucket.told() == {"1": "gone"}


def test_what_fails_for_another_reason_is_not_gone(in_bucket: Bench, bucket: Bucket) -> None:
    in_bucket.put(**TO_DISK)
    mark(bucket, "run/1", "run/2")
    in_bucket.tick()
    fail(in_bucket, "1", error="LayoutError", status=422)
    fail(in_bucket, "2", error="MissingError", status=502)  # no such bucket
    assert in_bucket.told() == {"1": "started", "2": "started"}


def test_a_failing_cloud_changes_nothing(
    in_bucket: Bench, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    in_bucket.put(**TO_DISK)
    mark(bucket, "run/1")
    rule = bucket.emulator.faults.add(Refuse(answers.EXPIRED_TOKEN), times=None)
    in_bucket.tick()
    assert in_bucket.told() == {}
    assert rule.struck
    assert (
        "the schedule s cannot read data/run: cannot list data/run: the credentials have expired"
        in caplog.text
    )
    bucket.emulator.faults.clear()
    in_bucket.tick()
    assert in_bucket.told() == {"1": "started"}


def test_run_by_number_and_the_newest(in_bucket: Bench, bucket: Bucket) -> None:
    stored = in_bucket.put(when={"directory": "data/run", "every": 1000}, **TO_DISK)
    mark(bucket, "run/1000", "run/1500", "run/2000")
    mark(bucket, "run/3000", "run/100", markers=())
    assert run_now(in_bucket.one, stored, None, in_bucket.now).key == "2000"
    assert run_now(in_bucket.one, stored, 1500, in_bucket.now).key == "1500"
    for step in (100, 10, 3000):
        with pytest.raises(ProblemError) as refused:
            run_now(in_bucket.one, stored, step, in_bucket.now)
        assert refused.value.detail == (
            f"there is no committed step {step} in 'data/run' now; name one that is there"
        )


def write_output(bucket: Bucket, name: str, text: str) -> None:
    """What a conversion leaves in a bucket, as far as retention looks at it."""
    key = f"{PREFIX}/out/{name}/slices.json"
    obstore.put(bucket.store(), key, text.encode(), use_multipart=False)
    put(bucket, f"out/{name}/d/0", f"out/{name}/item/{MARKER}", f"out/{name}/{MARKER}")


def convert(bench: Bench, bucket: Bucket, *steps: int) -> None:
    for step in steps:
        mark(bucket, f"run/{step}")
        bench.tick()
        made = bench.conversion(str(step))
        write_output(bucket, str(step), made.id)
        assert claims.finish(bench.db, claimed(bench.db, made.id), "succeeded")
        bench.settle()


def outputs(bucket: Bucket) -> set[str]:
    return {key.split("/")[1] for key in keys_below(bucket, "out")}


KEPT: dict[str, Any] = {"targets": [{"target": "data/out/{step}"}], "keep": 1}


def test_old_outputs_are_removed_with_their_marker_first(in_bucket: Bench, bucket: Bucket) -> None:
    in_bucket.put(**KEPT)
    write_output(bucket, "10", "somebody's, with a name that begins alike")
    convert(in_bucket, bucket, 1)
    bucket.emulator.log.clear()
    convert(in_bucket, bucket, 2)
    assert outputs(bucket) == {"2", "10"}
    assert len(keys_below(bucket, "out")) == 8
    gone = [r.key for r in bucket.emulator.log.requests if r.operation == "delete"]
    tried = (
        "reshard_unfinished.txt."  # whether objects may be deleted is tried with the name of none
    )
    gone = [key for key in gone if "/out/1/" in key and tried not in key]
    if bucket.scheme == "gs":  # S3 names them in a body
        assert gone[0] == f"{PREFIX}/out/1/{MARKER}"
        assert gone.index(f"{PREFIX}/out/1/slices.json") > gone.index(f"{PREFIX}/out/1/d/0")


def test_what_somebody_else_put_there_stays(in_bucket: Bench, bucket: Bucket) -> None:
    in_bucket.put(**KEPT)
    convert(in_bucket, bucket, 1)
    write_output(bucket, "1", "somebody's, in its place")
    convert(in_bucket, bucket, 2, 3)
    assert outputs(bucket) == {"1", "3"}


def test_a_removal_that_fails_is_finished_later(in_bucket: Bench, bucket: Bucket) -> None:
    in_bucket.put(**KEPT)
    convert(in_bucket, bucket, 1)
    rule = bucket.emulator.faults.add(
        Refuse(answers.ACCESS_DENIED), operation="delete" if bucket.scheme == "gs" else "delete_many",
        key="" if bucket.scheme == "s3" else f"{PREFIX}/out/1/d", times=None,
    )  # fmt: skip
    convert(in_bucket, bucket, 2)
    assert rule.struck
    assert "out/1/slices.json" in keys_below(bucket, "out")
    assert len(schedule_outputs.being_removed(in_bucket.db)) == 1
    bucket.emulator.faults.clear()
    in_bucket.settle()
    assert outputs(bucket) == {"2"}
    assert schedule_outputs.being_removed(in_bucket.db) == []


@EACH_CLOUD
def test_versions_are_published_and_removed_in_a_bucket(
    in_bucket: Bench, bucket: Bucket, root_url: str
) -> None:
    in_bucket.put(
        targets=[{"target": "data/published/weight_v{version}", "to": "safetensors"}],
        delta={"anchor_every": 3},
        keep=1,
    )
    for step in range(1, 5):
        reshard.save(f"{root_url}/run/{step}", {"w": np.arange(64.0) + step})
        in_bucket.tick()
        carry_out(in_bucket, str(step))
        in_bucket.settle()
        names = [one.name for one in reshard.inspect_versions(f"{root_url}/published")]
        # The newest, and those on which it stands: the third stands on both before it.
        assert names == [f"weight_v{n:06}" for n in range(1 if step < 4 else 4, step + 1)]
    assert not keys_below(bucket, f"{PREFIX}/published/weight_v000003")
