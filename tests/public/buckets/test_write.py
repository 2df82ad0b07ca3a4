"""Checkpoints are written to buckets as to a disk: the same bytes, and nobody sees them before they are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import reshard
from reshard.errors import (
    IncompleteCheckpointError,
    PlanError,
    StorageError,
    TargetBusyError,
    TargetExistsError,
)
from tests.campaigns import singly
from tests.emulators.buckets import Bucket
from tests.equal import assert_same_trees
from tests.orbax_trees import save_pytree
from tests.public.buckets.trees import LAYOUT, tree
from tests.public.buckets.uploads import upload


@pytest.fixture(params=["s3_bucket", "gcs_bucket"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


def keys(bucket: Bucket) -> list[str]:
    return sorted(one["path"] for page in bucket.store().list() for one in page)


@pytest.mark.parametrize(
    ("bucket", "options"),
    singly(
        ["s3_bucket", "gcs_bucket"],
        [{}, {"compression": "zstd"}, {"style": "v1"}, {"to": "safetensors"}, {"to": "safetensors", "files": "ranks"},
         {"to": "safetensors", "files": "dcp"}, {"check": "readback"}],
    ),
    indirect=["bucket"],
)  # fmt: skip
def test_what_is_written_is_what_a_disk_gets(options: dict, bucket: Bucket, tmp_path: Path) -> None:
    source = save_pytree(tmp_path / "saved", tree(3))
    url = f"{bucket.url}/run/7"
    report = reshard.convert(source, url, layout=LAYOUT, **options)
    reshard.convert(source, tmp_path / "local", layout=LAYOUT, **options)
    assert reshard.verify(url, tmp_path / "local").differences == 0
    assert reshard.verify(url).differences == 0
    assert_same_trees(reshard.restore(url), reshard.restore(tmp_path / "local"))
    assert not [key for key in keys(bucket) if not key.startswith("run/7/")]
    assert "run/7/reshard_unfinished.txt" not in keys(bucket)
    assert report.target == url
    assert reshard.convert(source, url, layout=LAYOUT, **options).already_done


def test_what_is_there_is_not_replaced_unless_asked(bucket: Bucket, tmp_path: Path) -> None:
    first = save_pytree(tmp_path / "first", tree(1))
    second = save_pytree(tmp_path / "second", tree(2))
    url = f"{bucket.url}/run/7"
    reshard.convert(first, url)
    before = {key: bucket.store().head(key)["e_tag"] for key in keys(bucket)}
    with pytest.raises(TargetExistsError, match=rf"{url} exists already and was left untouched"):
        reshard.convert(second, url)
    assert {key: bucket.store().head(key)["e_tag"] for key in keys(bucket)} == before
    reshard.convert(second, url, overwrite=True)
    assert reshard.verify(url, second).differences == 0


def test_objects_that_are_no_checkpoint_are_left_alone(bucket: Bucket, tmp_path: Path) -> None:
    source = save_pytree(tmp_path / "saved", tree(1))
    bucket.store().put("run/7/notes.txt", b"mine")
    for options in {}, {"overwrite": True}:
        with pytest.raises(TargetExistsError, match="left untouched"):
            reshard.convert(source, f"{bucket.url}/run/7", **options)
    bucket.store().put("run/8", b"mine")
    with pytest.raises(TargetExistsError, match="run/8 is an object and was left untouched"):
        reshard.convert(source, f"{bucket.url}/run/8")
    assert keys(bucket) == ["run/7/notes.txt", "run/8"]


@pytest.mark.parametrize(
    ("below", "options", "kind", "message"),
    [
        ("run/7", {"ocdbt": True}, PlanError, "an OCDBT database is not written to a bucket; leave it out"),
        ("run/w.safetensors", {}, StorageError, "is a single file, which cannot be checked in a bucket"),
        ("", {}, StorageError, "the source .* is inside the target"),
        ("saved/inside", {}, StorageError, "is inside the source"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_before_a_byte_moves(
    below: str, options: dict, kind: type, message: str, s3_bucket: Bucket, tmp_path: Path
) -> None:
    local = save_pytree(tmp_path / "saved", tree(1))
    source = upload(s3_bucket, local, "saved")
    s3_bucket.emulator.log.clear()
    with pytest.raises(kind, match=message):
        reshard.convert(source, f"{s3_bucket.url}/{below}", **options)
    assert not s3_bucket.emulator.log.count("put")


def test_weights_of_keras_are_written_to_a_disk(s3_bucket: Bucket, tmp_path: Path) -> None:
    """No folder is an answer, since the format has files only."""
    source = save_pytree(tmp_path / "saved", tree(1))
    reshard.convert(source, tmp_path / "m.weights.h5", select=["a"])
    with pytest.raises(PlanError) as caught:
        reshard.convert(tmp_path / "m.weights.h5", f"{s3_bucket.url}/x/y.weights.h5")
    assert str(caught.value) == (
        "Keras targets are single files, which cannot be checked in a bucket before they appear; write the file to a disk, and copy it from there (target)"
    )


def test_a_run_that_stops_is_invisible_and_resumes(bucket: Bucket, tmp_path: Path) -> None:
    source = save_pytree(tmp_path / "saved", tree(30))
    url = f"{bucket.url}/run/7"

    def stop(progress: reshard.Progress) -> None:
        if progress.tasks_done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard.convert(source, url, workers=1, progress=stop)
    assert not reshard.is_checkpoint(url)
    with pytest.raises(IncompleteCheckpointError, match=r"has reshard_unfinished\.txt but no"):
        reshard.inspect(url)
    left = [key for key in keys(bucket) if "/c/" in key or key.endswith("/c.0")]
    report = reshard.convert(source, url, workers=1)
    assert report.resumed_bytes > 0, left
    assert reshard.verify(url, source).differences == 0
    assert not [key for key in keys(bucket) if not key.startswith("run/7/")]


def test_two_runs_do_not_mix(bucket: Bucket, tmp_path: Path) -> None:
    source = save_pytree(tmp_path / "saved", tree(3))
    url = f"{bucket.url}/run/7"
    seen: list[BaseException] = []

    def other(_: reshard.Progress) -> None:
        if not seen:
            with pytest.raises(
                TargetBusyError, match=r"another run \(process \d+ on .*\) is writing"
            ) as caught:
                reshard.convert(source, url, workers=1)
            seen.append(caught.value)

    reshard.convert(source, url, workers=1, progress=other)
    assert seen
    assert reshard.verify(url, source).differences == 0


def test_digests_are_recorded_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    local = save_pytree(tmp_path / "saved", tree(2))
    url = upload(bucket, local, "run/7")
    before = keys(bucket)
    made = reshard.fingerprint(url)
    assert made.written == (f"{url}/slices.json",)
    assert keys(bucket) == sorted([*before, "run/7/slices.json"])
    assert made.tensors == reshard.fingerprint(local).tensors
    assert reshard.verify(url).differences == 0
    with pytest.raises(
        TargetExistsError, match=r"slices\.json' is there already and was left untouched"
    ):
        reshard.fingerprint(url)
    reshard.fingerprint(url, overwrite=True)
