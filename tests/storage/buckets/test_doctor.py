"""The doctor of buckets: says what holds and what does not, and leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from reshard.cli.app import run
from reshard.cli.views.targets import doctor_view
from reshard.errors import StorageError
from reshard.storage.buckets import objects
from reshard.storage.buckets.doctor import BucketCheck, BucketReport, examine_bucket
from reshard.storage.buckets.file import BucketFile
from reshard.storage.buckets.store import BucketStore
from tests.cli.show import lines, show
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import SECRETS, Bucket
from tests.emulators.faults import Flip, Refuse

PUT = objects.put

TRIED = [
    "write", "listing", "names", "ranges", "pinned reads", "create only", "replace known", "parts", "checksums", "deletion",
]  # fmt: skip


def held(found: BucketReport) -> dict[str, bool | None]:
    return {check.name: check.holds for check in found.checks}


def left(bucket: Bucket) -> list[str]:
    return [found["path"] for page in bucket.store().list() for found in page]


def test_all_holds_on_a_sound_bucket(bucket: Bucket) -> None:
    found = examine_bucket(f"{bucket.url}/run")
    assert list(held(found)) == TRIED
    assert found.is_fine
    assert [name for name, holds in held(found).items() if holds is None] == (
        [] if bucket.scheme == "s3" else ["checksums"]
    )
    assert found.latency_s is not None
    assert found.latency_s > 0
    assert found.upload_bytes_per_s is not None
    assert found.download_bytes_per_s is not None
    assert left(bucket) == []
    keys = {request.key for request in bucket.emulator.log.of("put")}
    assert all(key.startswith("run/reshard-doctor-") for key in keys)


@pytest.mark.parametrize("conditions", ["ignored", "refused"])
def test_a_store_without_conditional_writes(bucket: Bucket, conditions: str) -> None:
    server = bucket.emulator
    server.options = msgspec.structs.replace(server.options, conditions=conditions)
    found = examine_bucket(bucket.url)
    assert [name for name, holds in held(found).items() if holds is False] == ["create only", "replace known"]  # fmt: skip
    assert not found.is_fine
    assert left(bucket) == []


def test_a_store_that_takes_damaged_uploads_or_damages_answers(s3_bucket: Bucket) -> None:
    s3_bucket.emulator.faults.add(Flip(3), operation="get", key="ranges", times=None)
    found = examine_bucket(s3_bucket.url)
    assert held(found)["ranges"] is False
    assert left(s3_bucket) == []


@pytest.mark.parametrize(
    ("operation", "name", "text"),
    [
        ("put", "write", "cannot write"),
        ("list", "listing", "cannot list"),
        ("start_upload", "parts", "cannot write"),
    ],
)
def test_what_is_forbidden(bucket: Bucket, operation: str, name: str, text: str) -> None:
    bucket.emulator.faults.add(Refuse(answers.ACCESS_DENIED), operation=operation, times=None)
    found = examine_bucket(bucket.url)
    (check,) = [check for check in found.checks if check.name == name]
    assert check.holds is False
    assert text in check.found
    assert "the credentials have no permission; grant s3:" in check.found
    if operation == "put":
        assert list(held(found)) == ["write"]


@pytest.mark.parametrize(
    ("place", "wrong", "said"),
    [
        ("objects.put", lambda *_: "", "objects have no ETag"),
        ("objects.put_parts", lambda store, path, *_: PUT(store, path, b"x"), "an object in parts has other bytes"),
        ("objects.delete_folder", lambda *_: 0, "objects are still listed"),
        ("BucketStore.files", lambda *_: iter(()), "0 of 1 objects were listed"),
        ("BucketFile.read", lambda *_: b"?", "other bytes for 10 bytes from 0"),
    ],
)  # fmt: skip
def test_each_promise_that_a_store_breaks_is_named(
    gcs_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, place: str, wrong: Any, said: str
) -> None:
    owners = {"objects": objects, "BucketStore": BucketStore, "BucketFile": BucketFile}
    owner, _, name = place.partition(".")
    monkeypatch.setattr(owners[owner], name, wrong)
    found = examine_bucket(f"{gcs_bucket.url}/run")
    assert not found.is_fine
    assert any(said in check.found for check in found.checks if check.holds is False)


def test_what_may_not_be_deleted_is_named(bucket: Bucket) -> None:
    operation = "delete_many" if bucket.scheme == "s3" else "delete"
    bucket.emulator.faults.add(Refuse(answers.RETAINED), operation=operation, times=None)
    check = examine_bucket(bucket.url).checks[-1]
    assert (check.name, check.holds) == ("deletion", False)
    assert "a retention policy or a legal hold protects the object" in check.found
    assert check.follows.startswith(f"remove {bucket.url}/reshard-doctor-")


@pytest.mark.parametrize("url", ["/tmp/x", "https://h/x", "run"])  # noqa: S108  only a name
def test_only_buckets_are_examined(url: str) -> None:
    with pytest.raises(
        StorageError, match=r"is no URL of a bucket; expected gs://bucket/prefix, s3://"
    ):
        examine_bucket(url)


def test_the_command(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", bucket.url, "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["is_fine"] is True
    server = bucket.emulator
    server.options = msgspec.structs.replace(server.options, conditions="ignored")
    assert run(["doctor", bucket.url]) == 1
    shown = capsys.readouterr().out
    assert "create only    does not hold" in shown
    for secret in SECRETS.values():
        assert secret not in shown + out


def test_the_table_fits_80_columns() -> None:
    found = BucketReport(
        "gs://b/run",
        (
            BucketCheck("write", True, "an object was put", "nothing can be written here"),
            BucketCheck("create only", False, "a second object replaced the first", "two runs may mix it"),
            BucketCheck("checksums", None, "no checksum is sent to this cloud", "damage is noticed late"),
        ),
        0.031, 1e8, 2e8,
    )  # fmt: skip
    assert max(map(len, show(doctor_view(found), 80).splitlines())) <= 80
    assert lines(doctor_view(found), 80) == [
        "gs://b/run",
        "tried result found",
        "─" * 61,
        "write holds an object was put",
        "create only does not hold see below",
        "checksums – no checksum is sent to this cloud",
        "a request takes 31 ms; up 95.4 MiB/s, down 191 MiB/s",
        "create only: a second object replaced the first",
        "what follows: two runs may mix it",
        "not fine: 1 thing did not hold on gs://b/run",
    ]
    assert lines(doctor_view(BucketReport("s3://b", found.checks[:1])), 80)[-1] == (
        "fine: all that was tried holds on s3://b"
    )
