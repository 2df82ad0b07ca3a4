"""The clients that users have find the project's own servers to be S3 and GCS, each what the others wrote."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.exceptions import AlreadyExistsError

from tests.emulators.buckets import Bucket
from tests.emulators.faults import Flip
from tests.emulators.server import Options
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = pytest.mark.xdist_group("cloud")

GCS = ["gcsfs", "google", "tensorstore-gcs"]
S3 = ["boto3", "tensorstore-s3"]
CLIENTS = [*(("gcs_bucket", name) for name in GCS), *(("s3_bucket", name) for name in S3)]
WITH_VERSIONS = [client for client in CLIENTS if client[1] != "gcsfs"]
HTTP = [client for client in CLIENTS if not client[1].startswith("tensorstore")]
KEY = "run/1/é a&<>'%+.txt"
Do = Callable[..., Any]


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def do(cloud: Oracle, bucket: Bucket, library: str) -> Do:
    """Calls a method of a client of ``tests/oracles/cloud_clients.py`` with the bucket."""
    return lambda verb, *arguments: cloud.ask(
        "do", library=library, verb=verb, arguments=[bucket.name, *arguments]
    )


@pytest.fixture
def error(cloud: Oracle, bucket: Bucket, library: str) -> Do:
    """The HTTP status of the error that a call ends with, or the name of its class."""
    return lambda verb, *arguments: cloud.ask(
        "error_code", library=library, verb=verb, arguments=[bucket.name, *arguments]
    )


def get(bucket: Bucket, key: str) -> bytes:
    return bytes(obstore.get(bucket.store(), key).bytes())


def put(bucket: Bucket, key: str, data: bytes) -> Any:
    return obstore.put(bucket.store(), key, data, use_multipart=False)


def random_bytes(nbytes: int) -> bytes:
    return np.random.default_rng(0).bytes(nbytes)


@pytest.mark.parametrize(("bucket", "library"), CLIENTS, indirect=["bucket"])
def test_each_reads_what_the_other_wrote(bucket: Bucket, do: Do) -> None:
    do("put", KEY, b"theirs")
    assert get(bucket, KEY) == b"theirs"
    put(bucket, KEY, b"ours, longer")
    assert do("get", KEY) == b"ours, longer"
    assert do("get_range", KEY, 5, 9) == b" lon"
    do("put", "empty", b"")
    assert get(bucket, "empty") == b""
    do("delete", KEY)
    assert do("list", "run") == []


@pytest.mark.parametrize(("bucket", "library"), HTTP, indirect=["bucket"])
def test_all_see_the_same_versions_and_checksums(bucket: Bucket, do: Do) -> None:
    for key, data in [("a", b"abc"), ("b", random_bytes(100))]:
        done = put(bucket, key, data)
        head = obstore.head(bucket.store(), key)
        told = do("stat", key)
        assert (told["size"], told["etag"]) == (len(data), str(done["e_tag"]).strip('"'))
        # On S3 the version is the ETag with its quotes, on GCS the generation.
        assert str(told["version"]) == str(head["version"] or head["e_tag"])
    expected = {"gs": ("crc32c", "Nks/tw=="), "s3": ("crc64nvme", "BeXKuz/B+us=")}[bucket.scheme]
    assert do("stat", "a")[expected[0]] == expected[1]


@pytest.mark.parametrize(("bucket", "library"), HTTP, indirect=["bucket"])
def test_large_objects_go_in_parts(bucket: Bucket, do: Do) -> None:
    data = random_bytes((11 << 20) + 1)
    do("put_in_parts", "a", data)
    assert get(bucket, "a") == data
    counts = bucket.emulator.log.counts()
    assert counts["start_upload"] == counts["complete_upload"] == 1
    assert counts["put_part"] + counts["complete_upload"] >= 3
    obstore.put(bucket.store(), "b", data, use_multipart=True, chunk_size=6 << 20)
    assert do("get", "b") == data


@pytest.mark.parametrize(("bucket", "library"), WITH_VERSIONS, indirect=["bucket"])
def test_conditions_hold_across_clients(bucket: Bucket, do: Do, error: Do, library: str) -> None:
    refused: object = "ConditionNotMetError" if "tensorstore" in library else 412
    do("create", "marker", b"theirs")
    with pytest.raises(AlreadyExistsError):
        obstore.put(bucket.store(), "marker", b"ours", mode="create")
    assert error("create", "marker", b"again") == refused
    first = do("stat", "marker")["version"]
    do("update", "marker", b"second", first)
    assert error("update", "marker", b"third", first) == refused
    second = do("stat", "marker")["version"]
    put(bucket, "marker", b"ours")
    assert error("update", "marker", b"third", second) == refused
    assert get(bucket, "marker") == b"ours"


@pytest.mark.parametrize(("bucket", "library"), WITH_VERSIONS, indirect=["bucket"])
def test_reads_of_a_version(bucket: Bucket, do: Do, error: Do, library: str) -> None:
    put(bucket, "a", b"old")
    old = do("stat", "a")["version"]
    if "tensorstore" in library:
        assert do("is_still", "a", old)
    else:
        assert do("get_version", "a", old) == b"old"
    put(bucket, "a", b"new")
    if "tensorstore" in library:
        assert not do("is_still", "a", old)
    else:
        assert error("get_version", "a", old) == 412


def test_gcsfs_creates_only_what_is_not_there(gcs_bucket: Bucket, cloud: Oracle) -> None:
    def create(key: str, nbytes: int) -> None:
        cloud.ask(
            "do", library="gcsfs", verb="create", arguments=[gcs_bucket.name, key, b"x" * nbytes]
        )

    create("small", 3)
    put(gcs_bucket, "taken", b"ours")
    for nbytes in (3, 2 << 20):  # in one request, and in chunks
        with pytest.raises(RefusedError) as caught:
            create("taken", nbytes)
        assert caught.value.kind == "FileExistsError"
    assert get(gcs_bucket, "taken") == b"ours"


@pytest.mark.parametrize(("bucket", "library"), CLIENTS, indirect=["bucket"])
def test_listings_have_pages(bucket: Bucket, do: Do) -> None:
    keys = [f"run/{n:03}/é" for n in range(20)]
    for key in [*keys, "run2/a", "ru"]:
        put(bucket, key, b"x")
    bucket.emulator.options = Options(page_keys=6)
    assert do("list", "run/") == keys
    assert bucket.emulator.log.count("list") >= 4


@pytest.mark.parametrize(("bucket", "library"), CLIENTS, indirect=["bucket"])
def test_a_missing_key_is_not_found(bucket: Bucket, do: Do, error: Do) -> None:
    assert error("get", "none") in {404, "FileNotFoundError"}
    assert [one.status for one in bucket.emulator.log.of("get")] == [404]
    assert do("list", "none") == []


@pytest.mark.parametrize(
    ("bucket", "library"), [("gcs_bucket", "google"), ("s3_bucket", "boto3")], indirect=["bucket"]
)
def test_a_missing_bucket_is_not_found(cloud: Oracle, bucket: Bucket, library: str) -> None:
    assert bucket.emulator.log.count() == 0
    for verb, arguments in [("get", ["a"]), ("put", ["a", b"x"]), ("list", ["a"])]:
        asked = ["no-such-bucket", *arguments]
        assert cloud.ask("error_code", library=library, verb=verb, arguments=asked) == 404


@pytest.mark.parametrize(("bucket", "library"), HTTP, indirect=["bucket"])
def test_copies(bucket: Bucket, do: Do) -> None:
    put(bucket, "a/é", b"data")
    do("copy", "a/é", "b/é")
    assert get(bucket, "b/é") == b"data"


@pytest.mark.parametrize("library", ["gcsfs", "google"])
@pytest.mark.parametrize("bucket", ["gcs_bucket"], indirect=True)
def test_objects_are_moved_and_joined(bucket: Bucket, do: Do) -> None:
    put(bucket, "a/é", b"one ")
    do("move", "a/é", "b/é")
    put(bucket, "c", b"two")
    do("join", ["b/é", "c"], "joined")
    assert get(bucket, "joined") == b"one two"
    assert do("list", "") == ["b/é", "c", "joined"]


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_boto3_chooses_the_checksum(algorithm: str, s3_bucket: Bucket, cloud: Oracle) -> None:
    def do(verb: str, *arguments: Any) -> Any:
        return cloud.ask("do", library="boto3", verb=verb, arguments=[s3_bucket.name, *arguments])

    do("put", "a", b"data", algorithm)
    sent = s3_bucket.emulator.log.of("put")[0].headers
    assert f"x-amz-checksum-{algorithm.lower()}" in sent
    assert do("get", "a") == b"data"
    data = random_bytes((5 << 20) + 1)
    do("put_in_parts", "b", data, algorithm)
    assert do("get", "b") == data == get(s3_bucket, "b")


def test_boto3_transfers_files(s3_bucket: Bucket, cloud: Oracle, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(random_bytes((11 << 20) + 1))
    arguments = [s3_bucket.name, "a", str(file)]
    cloud.ask("do", library="boto3", verb="put_by_transfer", arguments=arguments)
    assert get(s3_bucket, "a") == file.read_bytes()
    asked = [s3_bucket.name, ["a", "b é"]]
    deleted = cloud.ask("do", library="boto3", verb="delete_many", arguments=asked)
    assert deleted == ["a", "b é"]
    assert not s3_bucket.emulator.objects.bucket(s3_bucket.name).objects


@pytest.mark.parametrize(("bucket", "library"), HTTP, indirect=["bucket"])
def test_a_flipped_bit_of_an_upload_is_refused(bucket: Bucket, do: Do, library: str) -> None:
    if library == "gcsfs":  # compares what it is told of the object afterwards
        bucket.emulator.faults.add(Flip(-12, upload=True), operation="put")
        with pytest.raises(RefusedError, match="MD5 checksum failed"):
            do("put", "a", b"data")
        return
    at = -3 if library == "boto3" else -40
    data = random_bytes(1000)
    bucket.emulator.faults.add(Flip(at, upload=True), operation="put")
    with pytest.raises(RefusedError, match=r"did not match the calculated checksum|BadDigest|400"):
        do("put", "a", data)
    assert not bucket.emulator.objects.bucket(bucket.name).objects


@pytest.mark.parametrize(
    ("bucket", "library"), [("gcs_bucket", "google"), ("s3_bucket", "boto3")], indirect=["bucket"]
)
def test_a_flipped_bit_of_an_answer_is_noticed(bucket: Bucket, do: Do) -> None:
    put(bucket, "a", random_bytes(1000))
    bucket.emulator.faults.add(Flip(500), operation="get", times=None)
    with pytest.raises(RefusedError, match=r"(?i)checksum"):
        do("get", "a")


def test_checksums_are_told_in_listings(gcs_bucket: Bucket, cloud: Oracle) -> None:
    """A chunk with its CRC32C behind it always has the same one, which listings tell without reading."""
    from awscrt.checksums import crc32c

    for n in range(3):
        data = random_bytes(50 + n)
        put(gcs_bucket, f"c/{n}", data + crc32c(data).to_bytes(4, "little"))
    for n in range(3):
        told = cloud.ask("do", library="google", verb="stat", arguments=[gcs_bucket.name, f"c/{n}"])
        assert told["crc32c"] == base64.b64encode(bytes.fromhex("48674BC7")).decode()
