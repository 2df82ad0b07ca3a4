"""A schedule that publishes each new step: a full version first, then deltas, one at a time, without a hole."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.db.conversions import conversions
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules.loop import run_now
from reshard_server.schemas.conversion import (
    OneDelta,
    OneTarget,
)

import reshard
from tests.server.schedules.bench import Bench
from tests.server.schedules.carrying_out import carry_out

WEIGHTS = np.random.default_rng(7).normal(size=(16, 8)).astype(np.float32)
MAP = {"map": [{"from": "w", "to": "up.weight", "shape": "i o -> o i"}], "drop": ["^step$"]}
BODY: dict[str, Any] = {
    "when": {"directory": "data/run", "poll_seconds": 0.2},
    "targets": [{"target": "data/published/weight_v{version}", "to": "safetensors", "map": MAP}],
    "delta": {"anchor_every": 4},
}


def weights(step: int) -> np.ndarray:
    made = WEIGHTS.copy()
    made[step % 16] += step
    return made


def save(run: Path, *steps: int) -> None:
    for step in steps:
        reshard.save(run / str(step), {"w": weights(step), "step": step})


def publish(bench: Bench, step: int) -> dict[str, Any]:
    """One step, from its discovery to its end."""
    save(bench.data / "run", step)
    bench.tick()
    report = carry_out(bench, str(step))
    bench.settle()
    return report


def test_waiting_steps_are_published_without_waiting_for_the_next_look(
    bench: Bench, run: Path
) -> None:
    bench.put(**{**BODY, "when": {**BODY["when"], "poll_seconds": 86400}})
    save(run, 1, 2, 3)
    for step in (1, 2, 3):
        bench.tick(time.time())
        assert list(bench.told()) == [str(n) for n in range(1, step + 1)]
        carry_out(bench, str(step))
        bench.tick(time.time())  # the version is there, but not settled
        bench.settle()
    assert kinds(bench) == ["full", "delta", "delta"]


def kinds(bench: Bench) -> list[str]:
    return [one.kind for one in reshard.inspect_versions(bench.data / "published")]


def test_a_full_version_then_deltas_then_a_full_one(bench: Bench, run: Path) -> None:
    bench.put(**BODY)
    for step in range(1, 7):
        publish(bench, step)
    assert kinds(bench) == ["full", "delta", "delta", "delta", "full", "delta"]
    assert [r.detail for r in bench.runs()] == [
        "version 000001: the first of this schedule",
        "version 000002: a delta on the version 000001",
        "version 000003: a delta on the version 000002",
        "version 000004: a delta on the version 000003",
        "version 000005: a full one, as every 4 versions",
        "version 000006: a delta on the version 000005",
    ]
    # The full version itself is compared; then the step of the version before.
    olds = [bench.conversion(str(step)).request for step in (2, 3)]
    assert [r.old for r in olds if isinstance(r, OneDelta)] == [
        "data/published/weight_v000001",
        "data/run/2",
    ]
    published = bench.data / "published"
    reshard.apply(published / "weight_v000001", [published / f"weight_v00000{n}" for n in (2, 3, 4)], bench.folder / "full")  # fmt: skip
    np.testing.assert_array_equal(reshard.restore(bench.folder / "full")["up.weight"], weights(4).T)
    assert run.exists()


def test_steps_wait_for_the_version_before(bench: Bench, run: Path) -> None:
    bench.put(**BODY)
    save(run, 1, 2, 3)
    bench.tick()
    bench.tick()
    assert bench.told() == {"1": "started"}
    carry_out(bench, "1")
    bench.tick()  # it has ended, but what it made is not recorded yet
    assert bench.told() == {"1": "started"}
    bench.settle()
    bench.tick()
    assert list(bench.told()) == ["1", "2"]
    assert bench.conversion("2").request.model_dump()["target"] == "data/published/weight_v000002"


def test_a_failure_leaves_no_hole(bench: Bench, run: Path) -> None:
    bench.put(**BODY)
    publish(bench, 1)
    save(run, 2)
    bench.tick()
    bench.end("2", "failed")
    bench.settle()
    assert publish(bench, 3)["version"] == "000002"
    # The step that failed is published when somebody asks for it, as the next version.
    run_now(bench.one, bench.get(), 2, bench.now)
    assert carry_out(bench, "2")["version"] == "000003"


def test_a_step_that_the_training_run_deleted_is_no_base(bench: Bench, run: Path) -> None:
    bench.put(**BODY)
    for step in (1, 2):
        publish(bench, step)
    shutil.rmtree(run / "2")
    assert publish(bench, 3)["command"] == "convert"
    assert bench.runs()[-1].detail == (
        "version 000003: a full one, since the step 2, of which the version 000002 was made, is gone"
    )


def test_a_step_that_is_deleted_meanwhile_and_a_new_tensor_give_full_versions(bench: Bench, run: Path) -> None:  # fmt: skip
    bench.put(**BODY)
    for step in (1, 2):
        publish(bench, step)
    save(run, 3)
    bench.tick()
    shutil.rmtree(run / "2")
    report = carry_out(bench, "3")
    bench.settle()
    assert report["warnings"][-1].startswith("a full version was published, since no delta could be made: data/run/2".replace("data", str(bench.data)))  # fmt: skip
    reshard.save(run / "4", {"w": np.concatenate([weights(4)] * 2), "step": 4})
    bench.tick()
    report = carry_out(bench, "4")
    assert "publish a full version (reshard convert)" in report["warnings"][-1]
    assert kinds(bench) == ["full", "delta", "full", "full"]


def test_a_version_of_somebody_else_is_no_base(bench: Bench, run: Path) -> None:
    bench.put(**BODY)
    publish(bench, 1)
    shutil.copytree(
        bench.data / "published/weight_v000001", bench.data / "published/weight_v000007"
    )
    assert publish(bench, 2)["command"] == "convert"
    assert bench.runs()[-1].detail == (
        "version 000008: a full one, since the version 000007 is not this schedule's, or is gone"
    )
    assert publish(bench, 3)["version"] == "000009"
    assert run.exists()


def test_a_step_that_comes_late_is_skipped(bench: Bench, run: Path) -> None:
    bench.put(**BODY)
    publish(bench, 5)
    save(run, 4)
    bench.tick()
    assert bench.told() == {"5": "started", "4": "skipped"}
    assert (
        bench.runs()[-1].detail == "the step 5 is published already, and versions go on from there"
    )


def test_what_a_kept_version_needs_is_kept(bench: Bench, run: Path) -> None:
    bench.put(**BODY, keep=2)
    for step in range(1, 6):
        publish(bench, step)
    # 4 and 5 are kept, and 4 stands on 1.
    assert kinds(bench) == ["full", "delta", "delta", "delta", "full"]
    publish(bench, 6)
    assert [v.name for v in reshard.inspect_versions(bench.data / "published")] == [
        "weight_v000005",
        "weight_v000006",
    ]
    assert run.exists()


def test_two_processes_publish_one_version_at_a_time(any_bench: Bench) -> None:
    bench = any_bench
    (bench.data / "run").mkdir()
    bench.put(**BODY)
    save(bench.data / "run", 1, 2)
    other = bench.process("two")
    bench.tick()
    bench.tick(process=other)
    assert bench.told() == {"1": "started"}
    with pytest.raises(ProblemError, match="is converting another one now"):
        run_now(other, bench.get(), 2, bench.now)
    assert bench.told() == {"1": "started"}


def test_a_changed_map_starts_a_chain_of_its_own(bench: Bench, run: Path) -> None:
    bench.put(**BODY)
    for step in (1, 2):
        publish(bench, step)
    [target] = BODY["targets"]
    bench.put(**{**BODY, "targets": [{**target, "cast": [[".", "bfloat16"]]}]})
    report = publish(bench, 3)
    assert report["command"] == "convert"
    assert "the old checkpoint gives the digest" in report["warnings"][-1]
    assert run.exists()


def test_the_requests_of_both_forms_follow_the_schedule(bench: Bench, run: Path) -> None:
    bench.put(**{**BODY, "delta": {"checksum": "blake3", "encoding": "overwrite"}}, priority=7, max_memory="64MiB", workers=1)  # fmt: skip
    report = publish(bench, 1)
    full = bench.conversion("1").request
    assert isinstance(full, OneTarget) and full.restart
    assert (full.priority, full.max_memory, report["target"].rpartition("/")[2]) == (
        7,
        "64MiB",
        "weight_v000001",
    )
    report = publish(bench, 2)
    delta = bench.conversion("2").request
    assert isinstance(delta, OneDelta) and delta.or_full
    assert (delta.priority, delta.workers, delta.labels) == (7, 1, {"schedule": "s", "step": "2"})
    assert (report["checksum"], report["encoding"]) == ("blake3", "overwrite")
    assert conversions.get(bench.db, bench.conversion("2").id) is not None
    assert run.exists()


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"when": {"cron": "0 3 * * *", "source": "data/run/1"}}, {}, "/delta",
     "delta is for the steps of a training run, but this schedule goes by the clock; give when.directory, or leave delta out"),
    ({"targets": [*BODY["targets"]] * 2}, {}, "/targets",
     "a schedule with delta publishes in one folder, but has 2 targets; give one target, and a schedule for each other"),
    ({}, {"target": "data/published/{step}"}, "/targets/0/target",
     "the target 'data/published/{step}' of a schedule with delta should be a folder below a root and weight_v{version} in it, such as "
     "data/published/weight_v{version}"),
    ({}, {"target": "data/weight_v{version}"}, "/targets/0/target", "should be a folder below a root and weight_v{version} in it"),
    ({}, {"target": "data/{step}/weight_v{version}"}, "/targets/0/target", "should be a folder below a root and weight_v{version} in it"),
    ({}, {"to": None}, "/targets/0/to", 'versions are safetensors files; give the target "to": "safetensors"'),
    ({}, {"mesh": "x=2"}, "/targets/0/mesh",
     "mesh would split tensors over files, but deltas stand on whole tensors; leave mesh out"),
    ({}, {"overwrite": True}, "/targets/0/overwrite",
     "a version that receivers may have read is not replaced; leave overwrite out"),
    ({"delta": None}, {}, "/targets/0/target", "has {version}; the known fields are {step}, {time}, {name}"),
    ({"delta": {"file_bytes": 0}}, {}, "/delta/file_bytes", "file_bytes is 0; expected a whole number of at least 1"),
    ({}, {"map": "none"}, "/targets/0/map", "the map 'none' is not stored"),
    ({}, {"target": "other/x/weight_v{version}"}, "/targets/0/target", "there is nothing at 'other/x/weight_v1000000'"),
    ({}, {"target": "data/run/x/weight_v{version}"}, "/targets/0/target", "is in the watched directory"),
]  # fmt: skip


def test_what_is_refused_when_it_is_stored(bench: Bench) -> None:
    for more, target, field, said in REFUSED:
        [usual] = BODY["targets"]
        body = {**BODY, "targets": [{**usual, **target}], **more}
        with pytest.raises(ProblemError) as refused:
            bench.put(**body)
        assert (refused.value.field, said in refused.value.detail) == (field, True), (body, refused.value.detail, refused.value.field)  # fmt: skip
    bench.put(
        **{**BODY, "targets": [{**BODY["targets"][0], "target": "data/w/{name}/weight_v{version}"}]}
    )
