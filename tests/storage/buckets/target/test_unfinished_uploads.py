"""Uploads in parts that a killed process left: found and aborted on S3, and only those of the target."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from reshard.errors import MissingPackageError, StorageError
from reshard.storage.buckets import aws as module
from reshard.storage.buckets.aws import (
    abort_uploads,
    list_uploads,
    uploads_below,
)
from reshard.storage.location import locate
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.emulators.server import Options

KEYS = ["run/7/a b+é", "run/7/a b+é", "run/7/c/d", "run/70/a", "run/7"]


@pytest.fixture(params=["s3_bucket", "moto_bucket"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


def begin(bucket: Bucket, key: str) -> None:
    """Begins an upload, as a client does that ends there."""
    if bucket.server is not None:
        bucket.server.uploads.start(bucket.name, key, {})
        return
    with module._s3(locate(bucket.url)) as s3:
        s3.create_multipart_upload(Bucket=bucket.name, Key=key)


def test_those_of_one_folder_are_aborted(bucket: Bucket) -> None:
    for key in KEYS:
        begin(bucket, key)
    place = locate(f"{bucket.url}/run/7")
    found = uploads_below(place)
    assert found is not None
    assert [one.key for one in found] == KEYS[:3]
    assert len({one.upload_id for one in found}) == 3
    assert abort_uploads(place) == 3
    assert uploads_below(place) == []
    assert abort_uploads(place) == 0
    left = uploads_below(locate(f"{bucket.url}/run"))
    assert left is not None
    assert sorted(one.key for one in left) == ["run/7", "run/70/a"]


def test_many_are_listed_in_pages(s3_bucket: Bucket) -> None:
    s3_bucket.emulator.options = Options(page_keys=50)
    for number in range(103):
        begin(s3_bucket, f"run/7/{number:04d}")
    assert abort_uploads(locate(f"{s3_bucket.url}/run/7")) == 103
    assert s3_bucket.emulator.log.count("list_uploads") == 3
    assert uploads_below(locate(f"{s3_bucket.url}/run/7")) == []


def test_what_the_store_does_not_tell_is_not_known(s3_bucket: Bucket, gcs_bucket: Bucket) -> None:
    assert uploads_below(locate(f"{gcs_bucket.url}/run/7")) is None
    begin(s3_bucket, "run/7/a")
    s3_bucket.emulator.faults.add(Refuse(answers.ACCESS_DENIED), operation="list_uploads", times=1)
    assert abort_uploads(locate(f"{s3_bucket.url}/run/7")) is None
    s3_bucket.emulator.faults.add(Refuse(answers.ACCESS_DENIED), operation="abort_upload", times=1)
    assert abort_uploads(locate(f"{s3_bucket.url}/run/7")) is None
    assert abort_uploads(locate(f"{s3_bucket.url}/run/7")) == 1


def test_the_error_has_the_stores_word_and_the_permissions(s3_bucket: Bucket) -> None:
    s3_bucket.emulator.faults.add(Refuse(answers.ACCESS_DENIED), operation="list_uploads", times=1)
    with pytest.raises(StorageError) as caught:
        list_uploads(locate(f"{s3_bucket.url}/run/7"))
    assert re.fullmatch(
        f"cannot ask for the unfinished uploads below {s3_bucket.url}/run/7: .*AccessDenied.*; see that the credentials may list and abort "
        r"them \(s3:ListBucketMultipartUploads, s3:AbortMultipartUpload\), or give the bucket a lifecycle rule that removes them",
        str(caught.value),
    )


def test_a_server_that_is_not_there_is_a_clear_error(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setattr(module, "_ATTEMPTS", 1)
    with pytest.raises(StorageError, match=r"below s3://.*/run/7: Could not connect to the endpoint"):  # fmt: skip
        list_uploads(locate(f"{s3_bucket.url}/run/7"))
    assert uploads_below(locate(f"{s3_bucket.url}/run/7")) is None


def test_without_boto3_they_are_not_known(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    place = locate(f"{s3_bucket.url}/run/7")
    with pytest.raises(MissingPackageError, match=r"are listed by the package boto3; run pip install '.\[cloud\]'"):  # fmt: skip
        list_uploads(place)
    assert abort_uploads(place) is None


def test_nothing_is_signed_for_a_public_bucket(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert list_uploads(locate(f"{s3_bucket.url}/run/7")) == []
    (request,) = s3_bucket.emulator.log.of("list_uploads")
    assert "authorization" not in request.headers


def test_requests_have_the_settings_of_the_bucket(
    s3_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint, region and keys, and none in the environment."""
    settings = (
        f'["{s3_bucket.url}"]\nendpoint = "{s3_bucket.emulator.url}"\nregion = "eu-west-3"\n'
        'access_key_id = "somebody"\nsecret_access_key = "s"\nsession_token = "tok/en+="\n'
    )
    (tmp_path / "buckets.toml").write_text(settings)
    for name in s3_bucket.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "buckets.toml"))
    begin(s3_bucket, "run/7/a b+é")
    assert abort_uploads(locate(f"{s3_bucket.url}/run/7")) == 1
    for request in s3_bucket.emulator.log.requests:
        assert "Credential=somebody/" in request.headers["authorization"]
        assert "/eu-west-3/s3/" in request.headers["authorization"]
        assert request.headers["x-amz-security-token"] == "tok/en+="
    assert s3_bucket.emulator.log.counts() == {"list_uploads": 1, "abort_upload": 1}
