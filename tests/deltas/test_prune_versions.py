"""``reshard.clean_versions`` removes what no kept version needs, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.storage.local.staging import lock_staging
from tests.delta_layout import bytes_of, changed, stored, write_delta, write_full
from tests.emulators.buckets import Bucket
from tests.robustness.crash.killing import Point, run_call_killed

LIKE = {"a": np.arange(600, dtype="f4"), "b": np.arange(9, dtype="i4")}


def publish(folder: Path) -> dict[int, dict[str, bytes]]:
    """A full version 0, deltas 1 and 2, a full version 3, deltas 4 and 5; the bytes of each."""
    states = {0: bytes_of(LIKE)}
    for number in range(1, 6):
        states[number] = changed(states[number - 1], 0.01, number)
    for number, state in states.items():
        if number in (0, 3):
            write_full(folder / f"weight_v{number:06d}", state, LIKE)
        else:
            write_delta(folder, number, states[number - 1], state)
    return states


def names(folder: Path) -> list[int]:
    """The versions there; fails for anything else."""
    return sorted(int(one.name.removeprefix("weight_v")) for one in folder.iterdir())


@pytest.mark.parametrize(
    ("keep", "left"),
    [(1, [3, 4, 5]), (3, [3, 4, 5]), (4, [0, 1, 2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])],
)
def test_what_kept_versions_need_stays(keep: int, left: list[int], tmp_path: Path) -> None:
    states = publish(tmp_path)
    told = reshard.clean_versions(tmp_path, keep, dry_run=True)
    assert names(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert not told.is_removed
    found = reshard.clean_versions(tmp_path, keep)
    assert names(tmp_path) == left == [int(one.version) for one in found.kept]
    assert told.removed == found.removed
    assert told.nbytes == sum(one.nbytes for one in found.removed)
    deltas = [tmp_path / f"weight_v00000{number}" for number in (4, 5)]
    reshard.apply(tmp_path / "weight_v000003", deltas, tmp_path / "served")
    assert stored(tmp_path / "served") == states[5]


def test_what_is_later_than_the_newest_whole_version_stays(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "weight_v000003").rename(tmp_path / "weight_v000009")
    for file in (tmp_path / "weight_v000009").iterdir():
        file.unlink()
    assert reshard.clean_versions(tmp_path, 1).removed == ()
    assert names(tmp_path) == [0, 1, 2, 4, 5, 9]


def test_a_delta_that_leads_nowhere_goes(tmp_path: Path) -> None:
    publish(tmp_path)
    shutil.rmtree(tmp_path / "weight_v000001")
    found = reshard.clean_versions(tmp_path, 1)
    assert [one.version for one in found.removed] == ["000000", "000002"]
    assert names(tmp_path) == [3, 4, 5]


def test_a_version_that_cannot_be_read_stops_it(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "weight_v000004" / "model.safetensors.index.json").write_text("{")
    problem = next(
        one.problem for one in reshard.inspect_versions(tmp_path) if one.kind == "damaged"
    )
    with pytest.raises(reshard.CorruptError) as error:
        reshard.clean_versions(tmp_path, 1)
    assert str(error.value) == (
        f"the version weight_v000004 cannot be read, so that what it needs is not known, and nothing was removed: {problem}; restore that version "
        "or remove its folder, and run again"
    )
    assert names(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_a_version_that_a_run_writes_is_refused(tmp_path: Path) -> None:
    publish(tmp_path)
    with (
        lock_staging(tmp_path / "weight_v000002"),
        pytest.raises(reshard.TargetBusyError, match="weight_v000002' now"),
    ):
        reshard.clean_versions(tmp_path, 1)
    reshard.clean_versions(tmp_path, 1)
    assert names(tmp_path) == [3, 4, 5]


@pytest.mark.parametrize("keep", [0, -1, True, "2"])
def test_at_least_one_is_kept(keep: object, tmp_path: Path) -> None:
    publish(tmp_path)
    with pytest.raises(reshard.PlanError, match="how many of the newest versions are kept"):
        reshard.clean_versions(tmp_path, keep)


DISSOLVE = "reshard.storage.local.transaction:dissolve"
TAKE_BACK = "reshard.storage.local.transaction:LocalTransaction.unpublish"
POINTS = [
    Point(place, when, number)
    for place in (TAKE_BACK, DISSOLVE)
    for when in ("before", "after")
    for number in (1, 2, 3)
]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_killed_call_leaves_whole_chains(point: Point, tmp_path: Path) -> None:
    publish(tmp_path)
    assert run_call_killed(point, "clean_versions", str(tmp_path), 1) == -9
    assert not any(one.problem for one in reshard.inspect_versions(tmp_path))
    reshard.clean_versions(tmp_path, 1)
    assert names(tmp_path) == [3, 4, 5]


def test_what_a_killed_delta_left_goes(tmp_path: Path) -> None:
    publish(tmp_path / "run")
    point = Point("reshard.storage.local.publishing:_rename", "after")
    base, target = tmp_path / "run" / "weight_v000003", tmp_path / "run" / "weight_v000006"
    assert run_call_killed(point, "delta", str(base), str(base), str(target)) == -9
    assert (target.parent / ".weight_v000006.reshard-partial").exists()
    assert len(reshard.clean_versions(tmp_path / "run", 9).leftovers) == 1
    assert names(tmp_path / "run") == [0, 1, 2, 3, 4, 5, 6]


def upload(bucket: Bucket, folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            bucket.store().put(f"run/{file.relative_to(folder)}", file.read_bytes())


def keys(bucket: Bucket) -> set[str]:
    return {one["path"].split("/")[1] for page in bucket.store().list() for one in page}


@pytest.mark.parametrize("kind", ["s3_bucket", "gcs_bucket"])
@pytest.mark.parametrize("stop", [None, 1, 2, 3])
def test_in_a_bucket(
    kind: str, stop: int | None, request: pytest.FixtureRequest, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from reshard.storage.buckets.transaction import ObjectTransaction

    bucket: Bucket = request.getfixturevalue(kind)
    publish(tmp_path)
    upload(bucket, tmp_path)
    kept = {f"weight_v00000{number}" for number in (3, 4, 5)}
    if stop is not None:
        with monkeypatch.context() as patch:
            patch.setattr(ObjectTransaction, "abort", stopping(ObjectTransaction.abort, stop))
            with pytest.raises(KeyboardInterrupt):
                reshard.clean_versions(f"{bucket.url}/run", 1)
        found = reshard.inspect_versions(f"{bucket.url}/run")
        assert not any(one.problem for one in found if one.kind in ("full", "delta"))
        assert [one.kind for one in found].count("unfinished") == 1
    reshard.clean_versions(f"{bucket.url}/run", 1)
    assert keys(bucket) == kept


def stopping(abort: Callable[..., None], number: int) -> Callable[..., None]:
    """As ``abort``, but the call of that number stops the program before it."""
    calls: list[int] = []

    def stop(self: object) -> None:
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        abort(self)

    return stop


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(tmp_path)
    folder = str(tmp_path)
    assert run(["clean", folder, "--versions", "1", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would remove: 3 versions" in said
    assert "weight_v000002  delta  000001" in said
    assert run(["clean", folder, "--versions", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["is_removed"]) == ("clean", True)
    assert [one["version"] for one in found["removed"]] == ["000000", "000001", "000002"]
    assert run(["clean", folder, "--versions", "1", "--state", "s3://b/x"]) == 2
    assert "--state is of the run to one target, but --versions looks through a folder" in capsys.readouterr().err.replace("\n", " ")  # fmt: skip
