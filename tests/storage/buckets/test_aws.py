"""Credentials in the files of AWS' command line are read by boto3; without it they are not passed over in silence."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from reshard.errors import MissingPackageError
from reshard.storage.buckets.aws import list_uploads
from reshard.storage.location import locate
from tests.emulators.buckets import Bucket


def refused(bucket: Bucket) -> str:
    with pytest.raises(MissingPackageError) as caught:
        locate(f"{bucket.url}/x").status()
    return str(caught.value)


@pytest.fixture
def _without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "obstore.auth.boto3", raising=False)


OTHERWISE = "run pip install '.[cloud]' in a checkout of reshard, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


@pytest.mark.usefixtures("_without_boto3")
def test_a_profile_needs_boto3(s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "training")
    text = refused(s3_bucket)
    assert text == f"the AWS profile 'training' needs the package boto3; {OTHERWISE}"


@pytest.fixture
def bucket(s3_bucket: Bucket) -> Bucket:
    return s3_bucket


@pytest.fixture
def files_of_aws(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys and region stand in ~/.aws alone."""
    for name in bucket.environment.keys() - {"AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-west-3\n[profile training]\nregion = eu-west-1\n"
    )
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = ann\naws_secret_access_key = s\n"
        "[training]\naws_access_key_id = bob\naws_secret_access_key = s\naws_session_token = t\n"
    )
    return tmp_path / ".aws"


@pytest.mark.usefixtures("_without_boto3")
def test_credentials_in_a_file_are_not_left_unread(s3_bucket: Bucket, files_of_aws: Path) -> None:
    text = refused(s3_bucket)
    assert text == f"{files_of_aws / 'credentials'} needs the package boto3; {OTHERWISE}"


@pytest.mark.parametrize(
    ("profile", "who"), [("", "ann/.*/eu-west-3/"), ("training", "bob/.*/eu-west-1/")]
)
@pytest.mark.usefixtures("files_of_aws")
def test_the_files_of_aws_are_read(
    profile: str, who: str, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    run = locate(f"{s3_bucket.url}/run")
    run.write(b"an object")
    assert list_uploads(run) == []
    assert s3_bucket.emulator.log.counts() == {"put": 1, "list_uploads": 1}
    for request in s3_bucket.emulator.log.requests:
        assert re.search(f"Credential={who}", request.headers["authorization"])
        assert request.headers.get("x-amz-security-token") == ("t" if profile else None)
