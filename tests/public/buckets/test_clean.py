"""``reshard clean`` removes what an interrupted run left, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import reshard
from reshard.errors import MissingError, PlanError, StorageError, TargetBusyError
from reshard.storage.buckets.lease import acquire_lease
from reshard.storage.buckets.store import BucketStore
from reshard.storage.leftovers import remove_leftovers
from reshard.storage.local.staging import staged
from tests.emulators.buckets import Bucket
from tests.orbax_trees import save_pytree
from tests.public.buckets.trees import tree


def interrupted(source: Path, target: str, **options: object) -> None:
    def stop(progress: reshard.Progress) -> None:
        if progress.tasks_done >= 90:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard.convert(source, target, workers=1, progress=stop, **options)


def run_reshard(*arguments: str) -> str:
    command = [sys.executable, "-m", "reshard", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def keys(bucket: Bucket) -> list[str]:
    return sorted(one["path"] for page in bucket.store().list() for one in page)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_pytree(tmp_path / "saved", tree(100))


@pytest.mark.parametrize("lent", ["s3_bucket", "gcs_bucket"])
@pytest.mark.parametrize("state", [None, "state/of/all"])
def test_what_is_left_in_a_bucket_goes(
    lent: str, state: str | None, source: Path, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue(lent)
    bucket.store().put("run/8/other", b"x")
    url = f"{bucket.url}/run/7"
    kept = None if state is None else f"{bucket.url}/{state}"
    interrupted(source, url, state=kept)
    beside = "run/.7." if state is None else f"{state}/.7-"
    assert any(key.startswith(beside) for key in keys(bucket))
    found = remove_leftovers(url, dry_run=True, state=kept)
    assert found.files > 90
    assert found.nbytes > 0
    assert not found.is_removed
    assert remove_leftovers(url, state=kept).is_removed
    assert keys(bucket) == ["run/8/other"]
    with pytest.raises(
        MissingError, match=r"nothing is left of an interrupted run to .*run/7; check the path"
    ):
        remove_leftovers(url, state=kept)


def test_what_is_left_on_a_disk_goes(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    interrupted(source, str(target), layout={"mesh": {"axes": ["x"], "shape": [2]}, "rules": []})
    said = run_reshard("clean", str(target), "--dry-run")
    assert "would remove: " in said
    assert str(tmp_path / ".out.reshard-partial") in said.replace("\n", "")
    found = json.loads(run_reshard("clean", str(target), "--json"))
    assert (found["command"], found["is_removed"], found["target"]) == ("clean", True, str(target))
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_finished_target_is_not_touched(s3_bucket: Bucket, source: Path) -> None:
    url = f"{s3_bucket.url}/run/7"
    reshard.convert(source, url)
    with pytest.raises(MissingError, match="nothing is left"):
        remove_leftovers(url)
    s3_bucket.store().put("run/.7.reshard-partial/journal/000001-000000", b"")
    assert remove_leftovers(url).files == 0
    assert reshard.verify(url, source).differences == 0


def test_what_a_run_writes_on_a_disk_is_refused(tmp_path: Path) -> None:
    with staged(tmp_path / "7") as staging:
        (staging.root / "chunk").write_bytes(b"1234")
        with pytest.raises(TargetBusyError, match=r"is writing .*/7' now"):
            remove_leftovers(str(tmp_path / "7"))
        assert (staging.root / "chunk").read_bytes() == b"1234"


def test_what_a_run_is_writing_is_refused(s3_bucket: Bucket) -> None:
    store = BucketStore("s3", s3_bucket.name)
    acquire_lease(store, "run/.7.reshard-partial/lease", f"{s3_bucket.url}/run/7")
    with pytest.raises(TargetBusyError, match=r"is writing .*run/7 now"):
        remove_leftovers(f"{s3_bucket.url}/run/7")


def test_a_state_that_no_other_host_finds_is_refused(
    s3_bucket: Bucket, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        StorageError, match=r"state is 'state'; expected a folder in a bucket, such as s3://"
    ):
        reshard.convert(source, f"{s3_bucket.url}/run/7", state="state")
    with pytest.raises(PlanError, match="is in none; leave it out"):
        reshard.convert(source, tmp_path / "out", state=f"{s3_bucket.url}/state")
