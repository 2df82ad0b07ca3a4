"""Every failure of a bucket is one clear error, bounded in time, with the store's own words and without secrets."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import obstore
import pytest

from reshard.errors import (
    ForbiddenError,
    MissingError,
    MissingPackageError,
    ReshardError,
    SourceChangedError,
    StorageError,
)
from reshard.storage.buckets.errors import DamagedUploadError, bucket_error, without_secrets
from reshard.storage.location import Location, locate
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import SECRETS, Bucket
from tests.emulators.faults import BreakAnswer, Disconnect, Hang, Refuse


@pytest.fixture
def run(impatient: Bucket) -> Location:
    obstore.put(impatient.store(), "run/a", b"0123456789" * 1000)
    return locate(f"{impatient.url}/run")


def read(root: Location) -> bytes:
    return (root / "a").open().read(0, 10_000)


def refused(call: Callable[[], Any], kind: type[ReshardError] = StorageError) -> str:
    """The error's text. It ends in time, and neither it nor its traceback has a secret."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - began < 60
    shown = "".join(traceback.format_exception(caught.value))
    for secret in (*SECRETS.values(), "key-of-the-s3-tests"):
        assert secret not in shown
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answers.ACCESS_DENIED, "the credentials have no permission; grant s3:GetObject, storage.objects.get, or Storage Blob Data Reader (the store says: AccessDenied: Access Denied)"),
        (answers.EXPIRED_TOKEN, "the credentials have expired; renew them and run the same command again (the store says: ExpiredToken"),
        (answers.UNAUTHENTICATED, "the store does not accept the credentials; check them, and that they belong to this cloud"),
        (answers.INVALID_ACCESS_KEY, "the store does not accept the credentials"),
        (answers.SIGNATURE_DOES_NOT_MATCH, "the store does not accept the credentials"),
        (answers.CLOCK_SKEWED, "the store refuses the time of this machine's clock; set the clock (NTP)"),
        (answers.OTHER_REGION, "the bucket is in another region; set AWS_REGION to the region of the bucket"),
        (answers.SIGNED_FOR_OTHER_REGION, "the bucket is in another region; set AWS_REGION to the region of the bucket (the store says: AuthorizationHeaderMalformed: The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-3')"),
        (answers.LOCKED, "a retention policy or a legal hold protects the object"),
        (answers.RETAINED, "a retention policy or a legal hold protects the object"),
        (answers.CUSTOMER_KEY_NEEDED, "the object is encrypted with a key of the customer, which was not sent; give the key"),
        (answers.CUSTOMER_KEY_NEEDED_GCS, "the object is encrypted with a key of the customer"),
        (answers.SLOW_DOWN, "the store asks for fewer requests, and still did after all retries; wait, use fewer workers"),
        (answers.TOO_MANY_REQUESTS, "the store asks for fewer requests"),
        (answers.INTERNAL_ERROR, "the store failed, and still did after all retries; run again later"),
    ],
)  # fmt: skip
def test_what_a_store_refuses(
    run: Location, impatient: Bucket, answer: answers.ErrorAnswer, reason: str
) -> None:
    impatient.emulator.faults.add(Refuse(answer), operation="get", times=None)
    kind = ForbiddenError if answer is answers.ACCESS_DENIED else StorageError
    text = refused(lambda: read(run), kind)
    assert text.startswith(f"cannot read {impatient.url}/run/a: {reason}")
    if answer is not answers.OTHER_REGION:
        assert f"(the store says: {answer.code}: {answer.message[:40]}" in text


def test_permissions_are_named_for_what_was_tried(run: Location, impatient: Bucket) -> None:
    impatient.emulator.faults.add(Refuse(answers.ACCESS_DENIED), times=None)
    text = refused(run.view, ForbiddenError)
    assert "cannot list" in text
    assert "grant s3:ListBucket, storage.objects.list, or" in text
    assert "grant s3:GetObject and s3:ListBucket, storage.objects.get and .list" in refused(
        run.status, ForbiddenError
    )


def test_no_such_bucket(impatient: Bucket) -> None:
    for look in locate("s3://no-such-bucket/x").status, locate("s3://no-such-bucket/x").view:
        if impatient.scheme == "s3":
            text = refused(look, MissingError)
            assert (
                "s3://no-such-bucket/x: there is no such bucket; check its name, and that the endpoint"
                in text
            )
    text = refused(
        lambda: locate(f"{impatient.url}/x").open(what="the tree").read(0, 1), MissingError
    )
    assert text.startswith(
        f"the tree: cannot read {impatient.url}/x: nothing is there; check bucket and path"
    )


@pytest.mark.parametrize("fault", [Disconnect(), BreakAnswer(100), BreakAnswer(5000)])
def test_a_connection_that_breaks_off_is_made_again(
    run: Location, impatient: Bucket, fault: Any, wait: Callable[..., None]
) -> None:
    wait(request_s=30, retry_s=60)
    rule = impatient.emulator.faults.add(fault, operation="get")
    assert read(run) == b"0123456789" * 1000
    assert rule.struck == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Disconnect(), "the connection broke off, also when it was asked again; check the network"),
        (Hang(), "no full answer came in time, also when it was asked again; check the network"),
        (BreakAnswer(100), "the connection broke off"),
    ],
)
def test_a_connection_that_keeps_breaking_off(
    run: Location, impatient: Bucket, fault: Any, reason: str, wait: Callable[..., None]
) -> None:
    if isinstance(fault, Hang):
        wait(request_s=0.5, retry_s=1)
    impatient.emulator.faults.add(fault, operation="get", times=None)
    assert refused(lambda: read(run)).startswith(f"cannot read {impatient.url}/run/a: {reason}")


def test_a_range_is_never_mixed_of_two_versions(run: Location, impatient: Bucket) -> None:
    """The rest of a body that breaks off is asked for in the same version."""
    from tests.emulators.faults import Call

    def change() -> None:
        obstore.put(impatient.store(), "run/a", b"9876543210" * 1000)

    impatient.emulator.faults.add(BreakAnswer(5000), operation="get")
    impatient.emulator.faults.add(Call(change), operation="get", nth=2)
    assert "the connection broke off, also when it was asked again" in refused(lambda: read(run))
    with pytest.raises(SourceChangedError):
        (run / "a").open('"the first version"').read(0, 9)


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://127.0.0.1:1", "no connection to the server; check the endpoint and the network"),
        ("http://no-such-host.invalid", "the name of the server is not known; check the endpoint"),
    ],
)
def test_no_server(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, endpoint: str, reason: str
) -> None:
    (tmp_path / "b.toml").write_text(
        f'["{s3_bucket.url}"]\nretry_timeout_s = 1\nendpoint = "{endpoint}"\n'
    )
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "b.toml"))
    text = refused(locate(f"{s3_bucket.url}/x").status)
    assert text.startswith(f"cannot look at {s3_bucket.url}/x: {reason}")
    assert "(the client says: " in text


def test_no_credentials(s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The chain ends at the metadata server, which is not there."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    (tmp_path / "b.toml").write_text(f'["{s3_bucket.url}"]\nretry_timeout_s = 1\n')
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "b.toml"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        "no credentials were found; set the variables of the cloud, log in with its command line"
        in refused(locate(f"{s3_bucket.url}/x").status)
    )


def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    for look in locate("gs://none/x").view, locate("gs://none/x").status:
        assert refused(look, MissingPackageError) == (
            "gs://none needs the package obstore; run pip install '.[cloud]' in a checkout of reshard"
        )


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ("HTTP status: 403: <Error><Code>InvalidObjectState</Code><Message>The operation is not valid for the object's storage class</Message>", StorageError, "the object is archived; restore it"),
        ("HTTP status: 409: <Error><Code>BlobImmutableDueToPolicy</Code><Message>This operation is not permitted</Message>", StorageError, "a retention policy or a legal hold protects"),
        ("HTTP status: 400: <Error><Code>BadDigest</Code><Message>The CRC64NVME you specified did not match</Message>", DamagedUploadError, "the store received other bytes than were sent"),
        ("Error getting token: invalid_grant: Bad Request", StorageError, "the store does not accept the credentials"),
        ("HTTP error: invalid peer certificate: UnknownIssuer", StorageError, "the server's certificate is not trusted"),
        ("HTTP status: 507: Insufficient Storage", StorageError, "a quota is used up"),
        ("something new", StorageError, "the request failed; remove that cause and run again (the client says: something new)"),
        ("HTTP status: 404: <Error><Code>ContainerNotFound</Code><Message>No container</Message>", MissingError, "there is no such bucket"),
    ],
)  # fmt: skip
def test_recorded_answers(body: str, kind: type[StorageError], reason: str) -> None:
    error = bucket_error("read", "az://c/x", OSError(body))
    assert type(error) is kind
    assert reason in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "GET https://a.blob.core.windows.net/c/x?sv=2024&sig=S3CRET%2B&se=1 failed",
        "https://h/b?X-Amz-Signature=S3CRET&X-Amz-Credential=S3CRET/2026",
        "Authorization: Bearer S3CRET",
        "AccountName=a;AccountKey=S3CRET;",
        '{"access_token": "S3CRET"}',
    ],
)
def test_secrets_are_removed_from_what_a_client_says(text: str) -> None:
    assert "S3CRET" not in without_secrets(text)
    assert "S3CRET" not in str(bucket_error("read", "az://c/x", ValueError(text)))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("HTTP status: 404: <Error><Code>NoSuchBucket</Code></Error>", "refused"),
        ("HTTP status: 400: <Error><Code>ExpiredToken</Code></Error>", "refused"),
        ("HTTP status: 403: <Error><Code>RequestTimeTooSkewed</Code></Error>", "refused"),
        ("HTTP status: 301: <Error><Code>PermanentRedirect</Code></Error>", "refused"),
        ("HTTP status: 401: ", "refused"),
        ("HTTP error: invalid peer certificate: UnknownIssuer", "refused"),
        ("Error getting credentials from 169.254.169.254", "refused"),
        ("HTTP status: 403: <Error><Code>AccessDenied</Code></Error>", "forbidden"),
        ("HTTP status: 403: ", "forbidden"),
        ("HTTP status: 503: <Error><Code>SlowDown</Code></Error>", "unavailable"),
        ("HTTP status: 500: ", "unavailable"),
        ("HTTP error: dns error", "unavailable"),
        ("HTTP error: tcp connect error", "unavailable"),
        ("HTTP error: kind: Body", "unavailable"),
        ("HTTP error: operation timed out", "slow"),
        ("HTTP status: 404: <Error><Code>NoSuchKey</Code></Error>", ""),
        ("HTTP status: 412: ", ""),
        ("HTTP status: 403: <Error><Code>InvalidObjectState</Code></Error>", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_bucket_as_a_whole(body: str, fault: str) -> None:
    """Another object would fare the same, so a service can tell its clients; the finding has no words of the store."""
    error = bucket_error("read", "s3://b/x", OSError(body), "the tree")
    assert error.fault == fault
    if fault:
        assert error.finding.startswith("the tree: cannot read s3://b/x: ")
        assert str(error).startswith(f"{error.finding}; ")
        assert "says" not in error.finding
    else:
        assert error.finding == ""
