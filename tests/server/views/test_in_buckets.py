"""Views of a run in a bucket: finished steps by their marker, few requests for many reads, and a storage that is away is not one that is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reshard_server.errors.problems import ProblemError
from reshard_server.views import recorded

from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.server.bucket_roots import EACH_CLOUD, delete, keys_below, save
from tests.server.served import Served
from tests.server.views import run as views
from tests.server.views.run import commit, file_of, listed, read, refused, revisions


@pytest.fixture
def in_bucket(serve: Callable[..., Served], root_url: str, tmp_path: Path) -> Served:
    return serve(roots={"data": root_url, "other": tmp_path / "other"})


@EACH_CLOUD
def test_steps_with_their_marker_are_revisions(
    in_bucket: Served, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "LOOK_SECONDS", -1.0)
    assert views.put(in_bucket, step="each").status_code == 201
    save(bucket, tmp_path, "run/1")
    save(bucket, tmp_path, "run/2", marker=False)
    old = commit(in_bucket)
    assert read(in_bucket) == file_of(tmp_path / "made")
    assert [one["step"] for one in revisions(in_bucket)] == [1]
    save(bucket, tmp_path, "run/2")
    assert [one["step"] for one in revisions(in_bucket)] == [2, 1]
    assert commit(in_bucket) != old
    assert read(in_bucket, old) == file_of(tmp_path / "made")
    delete(bucket, *keys_below(bucket, "run/1"))
    assert refused(listed(in_bucket, old))[0] == 410
    save(bucket, tmp_path, "run/1")
    assert listed(in_bucket, old).status_code in (
        200,
        410,
    )  # by the store's versions of equal bytes
    assert [one["step"] for one in revisions(in_bucket)] == [2, 1]


def test_reads_of_a_second_look_once(in_bucket: Served, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(recorded, "LOOK_SECONDS", 1000.0)
    save(bucket, tmp_path, "run/1")
    views.put(in_bucket, step="latest")
    first = read(in_bucket)
    old = commit(in_bucket)
    bucket.emulator.log.clear()
    for _ in range(3):
        assert read(in_bucket) == read(in_bucket, old) == first
    looks = bucket.emulator.log.counts()
    assert sum(looks.values()) <= 4, f"one look for the id, and no byte again: {looks}"


def test_a_storage_that_is_away_says_so(
    impatient: Bucket, in_bucket: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "LOOK_SECONDS", -1.0)
    save(impatient, tmp_path, "run/1")
    views.put(in_bucket, step="latest")
    old = commit(in_bucket)
    impatient.emulator.faults.add(Refuse(answers.ACCESS_DENIED), operation="list", times=None)
    for answer in (listed(in_bucket), listed(in_bucket, old)):
        status, detail = refused(answer)
        assert status == 502 and "ask the operator of this server" in detail, detail
    with pytest.raises(ProblemError) as away:
        read(in_bucket, old)
    assert away.value.kind.status == 502
