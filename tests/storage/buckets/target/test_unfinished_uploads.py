"""Uploads in parts that a killed process left: found and aborted on S3, and only those of the target."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote, urlencode

import pytest

from reshard.errors import StorageError
from reshard.storage.buckets.target.unfinished_uploads import _S3, abort_uploads, uploads_below
from reshard.storage.location import locate
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse

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
    _S3(bucket.name, "").ask("POST", key, {"uploads": ""})


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
    for number in range(1203):
        begin(s3_bucket, f"run/7/{number:04d}")
    assert abort_uploads(locate(f"{s3_bucket.url}/run/7")) == 1203
    assert s3_bucket.emulator.log.count("list_uploads") == 2
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
        _S3(s3_bucket.name, "run/7").ask("GET", "", {"uploads": ""})
    assert str(caught.value) == (
        f"cannot ask for the unfinished uploads below {s3_bucket.url}/run/7: status 403, AccessDenied; see that the credentials may list "
        "and abort them (s3:ListBucketMultipartUploads, s3:AbortMultipartUpload), or give the bucket a lifecycle rule that removes them"
    )


def test_a_server_that_is_not_there_is_a_clear_error(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    with pytest.raises(StorageError, match=r"below s3://.*/run/7: .*refused"):
        _S3(s3_bucket.name, "run/7").ask("GET", "", {"uploads": ""})


def test_nothing_is_signed_for_a_public_bucket(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    _S3(s3_bucket.name, "run/7").ask("GET", "", {"uploads": ""})
    (request,) = s3_bucket.emulator.log.of("list_uploads")
    assert "authorization" not in request.headers


def signature(method: str, target: str, headers: dict[str, str], secret: str, region: str) -> str:
    """As the specification of AWS Signature Version 4 has it."""
    path, _, query = target.partition("?")
    names = sorted(headers)
    canonical = "\n".join(
        [
            method,
            path,
            "&".join(sorted(query.split("&"))),
            "".join(f"{name}:{headers[name]}\n" for name in names),
            ";".join(names),
            headers["x-amz-content-sha256"],
        ]
    )
    date = headers["x-amz-date"]
    scope = [date[:8], region, "s3", "aws4_request"]
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = "\n".join(["AWS4-HMAC-SHA256", date, "/".join(scope), digest])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def test_requests_are_signed_as_amazon_asks(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No emulator compares signatures."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "tok/en+=")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    begin(s3_bucket, "run/7/a b+é")
    s3_bucket.emulator.log.clear()
    assert abort_uploads(locate(f"{s3_bucket.url}/run/7")) == 1
    secret = s3_bucket.environment["AWS_SECRET_ACCESS_KEY"]
    signed = ["host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"]
    for request in s3_bucket.emulator.log.requests:
        headers = {name: request.headers[name] for name in signed}
        path = quote(f"/{request.bucket}/{request.key}" if request.key else f"/{request.bucket}")
        target = f"{path}?{urlencode(request.query, quote_via=quote)}"
        expected = signature(request.method, target, headers, secret, "eu-west-1")
        assert request.headers["authorization"].endswith(f"Signature={expected}")
    assert s3_bucket.emulator.log.counts() == {"list_uploads": 1, "abort_upload": 1}
