"""Stores that refuse, and targets that cannot be: one clear error each, within seconds; nothing that looks whole is left."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import MissingError, ReshardError, StorageError, TargetExistsError
from reshard.storage.buckets import lease
from reshard.storage.leftovers import remove_leftovers
from tests.emulators.apis import error_answers as answers
from tests.emulators.apis.error_answers import ErrorAnswer
from tests.emulators.buckets import SECRETS, Bucket
from tests.emulators.faults import Refuse
from tests.emulators.server import Options
from tests.robustness.buckets.cases import (
    CASES,
    TARGET,
    convert,
    emptied,
    files_of,
    is_taken_for_one,
    keys,
    nothing_is_left,
)

pytestmark = pytest.mark.usefixtures("_small")

KEY_NOT_ALLOWED = ErrorAnswer(
    403, "AccessDenied",
    "User: arn:aws:iam::111122223333:user/a is not authorized to perform: kms:GenerateDataKey on resource: "
    "arn:aws:kms:us-east-1:111122223333:key/1 because no identity-based policy allows the kms:GenerateDataKey action",
)  # fmt: skip
KEY_DISABLED = ErrorAnswer(
    400, "KMS.DisabledException", "arn:aws:kms:us-east-1:111122223333:key/1 is disabled."
)
KEY_NOT_ALLOWED_GCS = ErrorAnswer(
    403, "AccessDenied",
    "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has been authorized to use "
    "this key.",
)  # fmt: skip
DELETION = "delete(_many)?"

SOON_S = 60
"""Less than the usual settings let a run wait, and much more than it takes."""

AT_ONCE_S = 20
"""Less than a run waits for a lease to die."""


def refused(call: Callable[[], Any], kind: type[ReshardError] = StorageError) -> str:
    """The text of the error, which comes soon and has no secret."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - began < SOON_S
    text = str(caught.value)
    assert "\n" not in text
    assert not [secret for secret in SECRETS.values() if secret in text]
    return text


def completes(bucket: Bucket, source: Path, case: str = "raw", **options: Any) -> None:
    """Once nothing is refused any more, the same command does it."""
    assert not reshard.is_checkpoint(f"{bucket.url}/{TARGET}")
    convert(bucket, source, case, **options)
    assert is_taken_for_one(bucket, source)
    nothing_is_left(bucket)


@pytest.fixture
def _impatient(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "buckets.toml"
    settings.write_text(f'["{bucket.url}"]\nretry_timeout_s = 1\n')
    monkeypatch.setenv("RESHARD_BUCKETS", str(settings))


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("answer", "rule", "expected"),
    [
        (answers.ACCESS_DENIED, {"operation": "list"}, r"cannot (list|look at) \S+: the credentials have no permission; grant s3:(ListBucket|GetObject and s3:ListBucket)"),
        (answers.ACCESS_DENIED, {"operation": "put"}, r"cannot write \S+/lease: the credentials have no permission; grant s3:PutObject, storage\.objects\.create"),
        (answers.ACCESS_DENIED, {"operation": "put", "nth": 4}, r"cannot write \S+: the credentials have no permission; grant s3:PutObject"),
        (answers.ACCESS_DENIED, {"operation": DELETION}, r"cannot delete \S+/reshard_unfinished\.txt\.\d+: the credentials have no permission; grant s3:DeleteObject, storage\.objects\.delete"),
        (answers.EXPIRED_TOKEN, {"operation": "put", "nth": 6}, r"cannot write \S+: the credentials have expired; renew them and run the same command again"),
        (answers.UNAUTHENTICATED, {}, r"the store does not accept the credentials; check them, and that they belong to this cloud"),
        (answers.INVALID_ACCESS_KEY, {"operation": "put"}, r"the store does not accept the credentials"),
        (answers.SIGNED_FOR_OTHER_REGION, {"operation": "put|list"}, r"the bucket is in another region; set AWS_REGION to the region of the bucket .*expecting 'eu-west-3'"),
        (answers.OTHER_REGION, {"operation": "put"}, r"the bucket is in another region; set AWS_REGION to the region of the bucket"),
        (answers.CLOCK_SKEWED, {"operation": "put"}, r"the store refuses the time of this machine's clock; set the clock \(NTP\) and run again"),
        (answers.RETAINED, {"operation": "put", "key": "lease", "nth": 3}, r"cannot write \S+/lease: a retention policy or a legal hold protects the object; choose another target, or wait until the retention ends"),
        (answers.LOCKED, {"operation": DELETION}, r"cannot delete \S+: a retention policy or a legal hold protects the object"),
        (KEY_NOT_ALLOWED, {"operation": "put"}, r"cannot write \S+/lease: the key with which the bucket encrypts may not be used; enable it, and grant its use \(kms:GenerateDataKey and kms:Decrypt"),
        (KEY_DISABLED, {"operation": "put"}, r"the key with which the bucket encrypts may not be used; enable it"),
        (KEY_NOT_ALLOWED_GCS, {"operation": "put"}, r"the key with which the bucket encrypts may not be used; .*roles/cloudkms\.cryptoKeyEncrypterDecrypter"),
        (answers.CUSTOMER_KEY_NEEDED, {"operation": "get"}, r"the object is encrypted with a key of the customer, which was not sent; give the key"),
        (answers.SLOW_DOWN, {"operation": "put"}, r"the store asks for fewer requests, and still did after all retries; wait, use fewer workers, and run again"),
        (answers.NO_SUCH_BUCKET, {"operation": "put"}, r"there is no such bucket; check its name, and that the endpoint is the right one"),
    ],
    ids=lambda value: value.code if isinstance(value, ErrorAnswer) else "",
)  # fmt: skip
def test_what_a_store_refuses(
    answer: ErrorAnswer, rule: dict[str, Any], expected: str, bucket: Bucket, tiny: Path
) -> None:
    import re

    rule = dict(rule)
    pattern = rule.pop("operation", "")
    known = ("put", "list", "get", "delete", "delete_many", "head", "put_part", "start_upload")
    for operation in [one for one in known if re.fullmatch(pattern, one)] or [""]:
        bucket.emulator.faults.add(Refuse(answer), operation=operation, times=None, **rule)
    text = refused(lambda: convert(bucket, tiny, "raw"), ReshardError)
    assert re.search(expected, text), text
    assert re.search("the (store|client) says: ", text)
    bucket.emulator.faults.clear()
    completes(bucket, tiny)


def test_no_such_bucket(bucket: Bucket, tiny: Path) -> None:
    url = f"{bucket.scheme}://no-such-bucket/run/7"
    text = refused(lambda: reshard.convert(tiny, url), MissingError)
    assert f"{bucket.scheme}://no-such-bucket" in text
    assert "there is no such bucket; check its name, and that the endpoint is the right one" in text


def test_credentials_that_expire_midway_and_are_renewed(
    s3_bucket: Bucket, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of settings is looked at with each request, so that its owner may renew them while a run goes on."""
    settings = tmp_path / "buckets.toml"

    def renew(key: str) -> None:
        renewed = tmp_path / "renewed.toml"
        renewed.write_text(
            f'["{s3_bucket.url}"]\naccess_key_id = "{key}"\nsecret_access_key = "s"\n'
        )
        renewed.rename(settings)

    renew("first")
    monkeypatch.setenv("RESHARD_BUCKETS", str(settings))
    convert(s3_bucket, tiny, "raw", progress=lambda _: renew("second"))
    used = [one.headers["authorization"] for one in s3_bucket.emulator.log.requests]
    assert "Credential=first/" in used[0]
    assert "Credential=second/" in used[-1]
    assert is_taken_for_one(s3_bucket, tiny)


def test_what_was_done_before_credentials_expired_is_not_done_again(
    bucket: Bucket, tiny: Path
) -> None:
    bucket.emulator.faults.add(Refuse(answers.EXPIRED_TOKEN), operation="put", key="rows/c")
    text = refused(lambda: convert(bucket, tiny, "raw"))
    assert "the credentials have expired; renew them and run the same command again" in text
    assert "run the same again to resume it" in text
    report = convert(bucket, tiny, "raw")
    assert report.resumed_bytes > 0
    assert is_taken_for_one(bucket, tiny)


# A lease that is damaged.


@pytest.mark.parametrize("way", ["resume", "restart", "clean"])
def test_a_lease_that_is_damaged_does_not_bar_the_target(
    way: str, bucket: Bucket, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.emulator.faults.add(Refuse(answers.EXPIRED_TOKEN), operation="put", key="rows/c")
    refused(lambda: convert(bucket, tiny, "raw"))
    (key,) = [key for key in keys(bucket) if key.endswith("/lease")]
    data = bytearray(b"".join(bucket.emulator.objects.get(bucket.name, key).segments))
    data[40] ^= 4
    bucket.store().put(key, bytes(data))
    monkeypatch.setattr(lease, "DEAD_S", 0.0)
    if way == "clean":
        assert reshard.clean(f"{bucket.url}/{TARGET}").is_removed
        assert keys(bucket) == []
        return
    report = convert(bucket, tiny, "raw", restart=way == "restart")
    assert bool(report.resumed_bytes) == (way == "resume")
    assert is_taken_for_one(bucket, tiny)
    nothing_is_left(bucket)


# Stores without conditional writes.


@pytest.mark.parametrize("conditions", ["refused", "ignored"])
@pytest.mark.parametrize("case", CASES)
def test_a_store_without_conditions_is_refused_at_once(
    conditions: Any, case: str, bucket: Bucket, tiny: Path
) -> None:
    bucket.emulator.options = Options(least_part_bytes=1, conditions=conditions)
    began = time.monotonic()
    text = refused(lambda: convert(bucket, tiny, case))
    assert time.monotonic() - began < AT_ONCE_S
    assert f"the store of {bucket.url}/{TARGET} keeps no conditions on writing, by which a run is sure that no other one writes" in text  # fmt: skip
    assert "choose another store, or see that nobody else writes there and say so (unsafe_commit)" in text  # fmt: skip
    why = {
        "refused": "the store takes no conditions on writing",
        "ignored": "it put an object in the place of one although it was asked not to",
    }[conditions]
    assert why in text
    assert keys(bucket) == []
    assert bucket.emulator.log.count("put") <= 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        completes(bucket, tiny, case, unsafe_commit=True)


# Targets.


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("run/../7", "has the part '..', which means another folder to some programs; write the path without it"),
        ("run/./7", "has the part '.', which means another folder"),
        ("run//7", "has an empty part ('//'), which programs read in different ways; write single slashes"),
        ("run/7//", "has an empty part ('//')"),
        ("/run/7", "has an empty part ('//')"),
        ("run/7\n", "has the control character '\\n'; no object of a checkpoint has one in its name"),
        ("run/" + "é" * 520, "is longer than the 1,024 bytes that a key may have; choose a shorter path"),
        ("", "is a whole bucket; name a folder in it, such as"),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be(target: str, expected: str, bucket: Bucket, tiny: Path) -> None:
    assert expected in refused(lambda: convert(bucket, tiny, "raw", target))
    assert keys(bucket) == []


@pytest.mark.parametrize("target", ["run/7/", "läufe/模型 7", "run/7 (b)+c%20d=e&f", "a~b/.7"])
def test_a_target_with_an_unusual_name(target: str, bucket: Bucket, tiny: Path) -> None:
    convert(bucket, tiny, "raw", target)
    name = target.removesuffix("/")
    assert is_taken_for_one(bucket, tiny, name)
    assert all(key.startswith(f"{name}/") for key in keys(bucket))
    assert convert(bucket, tiny, "raw", target).already_done


def test_a_name_that_is_half_of_another_is_another(
    bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    """``run/100`` beside ``run/1000``: written, replaced, interrupted and cleaned by itself."""
    convert(bucket, tiny, "raw", "run/1000")
    before = files_of(bucket, tmp_path / "before", "run/1000")
    assert not reshard.is_checkpoint(f"{bucket.url}/run/100")
    with pytest.raises(
        MissingError,
        match=r"run/100 does not exist, and the run has step 1000: expected the directory of a checkpoint; check",
    ):
        reshard.inspect(f"{bucket.url}/run/100")
    convert(bucket, tiny, "zstd", "run/100")
    convert(bucket, tiny, "raw", "run/100", overwrite=True)
    assert is_taken_for_one(bucket, tiny, "run/100")

    bucket.emulator.faults.add(Refuse(answers.EXPIRED_TOKEN), operation="put", key="run/10/rows/c")
    with pytest.raises(StorageError, match="run the same again to resume it"):
        convert(bucket, tiny, "zstd", "run/10")
    assert remove_leftovers(f"{bucket.url}/run/10").is_removed
    assert files_of(bucket, tmp_path / "after", "run/1000") == before
    assert is_taken_for_one(bucket, tiny, "run/1000")
    assert {key.split("/")[1] for key in keys(bucket)} == {"100", "1000"}


def test_an_object_where_a_folder_should_be(bucket: Bucket, tiny: Path) -> None:
    bucket.store().put("run", b"mine")
    bucket.store().put("run/7", b"mine")
    text = refused(lambda: convert(bucket, tiny, "raw"), TargetExistsError)
    assert "run/7 is an object and was left untouched; a checkpoint is a folder: choose another target, or remove it" in text  # fmt: skip
    assert keys(bucket) == ["run", "run/7"]
    emptied(bucket)
