"""The S3 face as boto3 and obstore see it: lists in pages, heads, ranges, conditions, checksums, presigned URLs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from reshard_server.errors.problems import CHANGED, GONE, NO_VIEW, TOO_MANY, ProblemError
from reshard_server.worker.children import Children

import reshard
from reshard.checksums.sums import digest_of_bytes
from tests.server.faces.s3_served import Made, S3Served, serving_s3
from tests.views.sources import MAP, SIZES, save_source

OLD = "0123456789abcdef0123456789abcdef01234567"
SMALL = {"config.json": b"{}", "nothing": b"", "deep/er/a.bin": b"0123456789", "deep/b.bin": b"<&>"}
DATE = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory, children: Children) -> Iterator[S3Served]:
    """Views of a checkpoint with digests (llama), without them (plain), and of small files, which sort before and behind."""
    folder = tmp_path_factory.mktemp("s3")
    source = save_source(folder / "source")
    reshard.convert(source, folder / "recorded")
    with (
        serving_s3(folder, children) as served,
        reshard.open_view(folder / "recorded", file_bytes=60_000) as llama,
        reshard.open_view(source, map=MAP, sizes=SIZES) as plain,
    ):
        shelf = served.shelf
        shelf.add("llama", plain, OLD)
        shelf.add("llama", llama, llama.revision)
        shelf.add("plain", plain, plain.revision)
        for name in ("llama-2", "llama.b", "secret"):
            (folder / name).mkdir()
            shelf.add(name, Made.of(folder / name, SMALL), OLD)
        shelf.hidden.add("secret")
        yield served


@pytest.fixture(scope="module")
def client(s3: S3Served) -> Any:
    return s3.client()


def code_of(call: Callable[..., Any], **arguments: Any) -> tuple[int, str]:
    with pytest.raises(ClientError) as raised:
        call(**{"Bucket": "views", **arguments})
    found = raised.value.response
    return found["ResponseMetadata"]["HTTPStatusCode"], found["Error"]["Code"]


def all_keys(s3: S3Served) -> list[str]:
    visible = s3.shelf.views.keys() - s3.shelf.hidden
    keys = (
        f"{name}/{path}" for name in visible for path in s3.shelf.views[name]["main"].view.files
    )
    return sorted(keys, key=lambda key: key.encode())


def test_the_one_bucket_is_listed_and_found(client: Any) -> None:
    assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["views"]
    assert client.head_bucket(Bucket="views")["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert client.get_bucket_location(Bucket="views")["LocationConstraint"] is None
    assert code_of(client.head_bucket, Bucket="other") == (404, "404")
    assert code_of(client.list_objects_v2, Bucket="other") == (404, "NoSuchBucket")


def test_the_top_lists_views_without_planning_them(s3: S3Served, client: Any) -> None:
    s3.shelf.planned.clear()
    found = client.list_objects_v2(Bucket="views", Delimiter="/")
    prefixes = [each["Prefix"] for each in found["CommonPrefixes"]]
    assert prefixes == ["llama-2/", "llama.b/", "llama/", "plain/"]
    assert "Contents" not in found and found["KeyCount"] == 4
    one = client.list_objects_v2(Bucket="views", Delimiter="/", Prefix="pl")
    assert [each["Prefix"] for each in one["CommonPrefixes"]] == ["plain/"]
    assert s3.shelf.planned == []


def expected_list(keys: Sequence[str], prefix: str, delimiter: str) -> list[str]:
    """The keys and common prefixes that S3 lists, by its definition."""

    def name(key: str) -> str:
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        return key if end < 0 else key[: end + len(delimiter)]

    return [name for name, _ in groupby(map(name, (k for k in keys if k.startswith(prefix))))]


@pytest.mark.parametrize("call", ["list_objects_v2", "list_objects"])
@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("delimiter", ["", "/", "a", "er/"])
@pytest.mark.parametrize(
    "prefix", ["", "llama", "llama/", "llama-2/deep", "llama-2/deep/", "zz", "none/"]
)
def test_pages_join_to_the_whole_list_in_order(
    s3: S3Served, client: Any, call: str, size: int, delimiter: str, prefix: str
) -> None:
    pages = list(
        client.get_paginator(call).paginate(
            Bucket="views", Prefix=prefix, Delimiter=delimiter, PaginationConfig={"PageSize": size}
        )
    )
    found = []
    for page in pages:
        keys = [each["Key"] for each in page.get("Contents", ())]
        prefixes = [each["Prefix"] for each in page.get("CommonPrefixes", ())]
        assert len(keys) + len(prefixes) <= size
        found += sorted(keys + prefixes)
    assert found == expected_list(all_keys(s3), prefix, delimiter)
    assert [page["IsTruncated"] for page in pages] == [True] * (len(pages) - 1) + [False]


def test_entries_have_size_tag_and_date(s3: S3Served, client: Any) -> None:
    files = s3.shelf.views["llama"]["main"].view.files
    listed = client.list_objects_v2(Bucket="views", Prefix="llama/")["Contents"]
    assert {each["Key"]: (each["Size"], each["ETag"], each["LastModified"]) for each in listed} == {
        f"llama/{path}": (file.nbytes, f'"{file.tag[:32]}-1"', DATE) for path, file in files.items()
    }
    later = client.list_objects_v2(Bucket="views", Prefix="llama/", StartAfter=listed[0]["Key"])
    assert [each["Key"] for each in later["Contents"]] == [each["Key"] for each in listed[1:]]
    none = client.list_objects_v2(Bucket="views", MaxKeys=0)
    assert (none["KeyCount"], none["IsTruncated"]) == (0, False)


def test_bytes_are_those_of_the_view(s3: S3Served, client: Any) -> None:
    for name in ("llama", "plain"):
        for path, file in s3.shelf.views[name]["main"].view.files.items():
            whole = b"".join(file.read())
            got = client.get_object(Bucket="views", Key=f"{name}/{path}")
            assert got["Body"].read() == whole
            head = client.head_object(Bucket="views", Key=f"{name}/{path}")
            assert head["ContentLength"] == len(whole) == got["ContentLength"]
            assert head["ETag"] == got["ETag"] and head["AcceptRanges"] == "bytes"
            assert head["LastModified"] == DATE
            assert head["ContentType"] == got["ContentType"] == "application/octet-stream"


def test_an_older_revision_has_its_own_keys(s3: S3Served, client: Any) -> None:
    listed = client.list_objects_v2(Bucket="views", Prefix=f"llama@{OLD}/")
    files = s3.shelf.views["plain"]["main"].view.files
    assert [each["Key"] for each in listed["Contents"]] == [f"llama@{OLD}/{path}" for path in files]
    got = client.get_object(Bucket="views", Key=f"llama@{OLD}/model.safetensors")
    assert got["Body"].read() == b"".join(files["model.safetensors"].read())


@pytest.mark.parametrize(
    ("asked", "expected", "status"),
    [
        ("bytes=0-7", slice(0, 8), 206),
        ("bytes=100-", slice(100, None), 206),
        ("bytes=-9", slice(-9, None), 206),
        ("bytes=5-999999999", slice(5, None), 206),
        ("bytes=0-1,4-5", slice(None), 200),
        ("items=0-1", slice(None), 200),
        ("bytes=7-2", slice(None), 200),
    ],
)
def test_ranges(s3: S3Served, client: Any, asked: str, expected: slice, status: int) -> None:
    key = "plain/model.safetensors"
    whole = b"".join(s3.shelf.views["plain"]["main"].view.files["model.safetensors"].read())
    got = client.get_object(Bucket="views", Key=key, Range=asked)
    assert got["Body"].read() == whole[expected]
    assert got["ResponseMetadata"]["HTTPStatusCode"] == status
    head = client.head_object(Bucket="views", Key=key, Range=asked)
    assert head["ContentLength"] == len(whole[expected])
    start, stop, _ = expected.indices(len(whole))
    said = f"bytes {start}-{stop - 1}/{len(whole)}" if status == 206 else None
    assert got.get("ContentRange") == said


def test_a_range_without_a_byte_and_another_part_are_refused(client: Any) -> None:
    key, empty = {"Key": "llama-2/deep/b.bin"}, {"Key": "llama-2/nothing"}
    assert code_of(client.get_object, **key, Range="bytes=3-") == (416, "InvalidRange")
    assert code_of(client.get_object, **empty, Range="bytes=0-") == (416, "InvalidRange")
    assert code_of(client.get_object, **key, PartNumber=2) == (501, "NotImplemented")
    one = client.get_object(Bucket="views", **key, PartNumber=1)
    assert (one["Body"].read(), one["ContentRange"]) == (b"<&>", "bytes 0-2/3")
    assert client.get_object(Bucket="views", **empty, PartNumber=1)["ContentLength"] == 0


def test_conditions(client: Any) -> None:
    key = {"Bucket": "views", "Key": "llama-2/deep/er/a.bin"}
    head = client.head_object(**key)
    tag, date = head["ETag"], head["LastModified"]
    assert client.get_object(**key, IfMatch=tag)["Body"].read() == b"0123456789"
    assert code_of(client.get_object, **key, IfMatch='"other"') == (412, "PreconditionFailed")
    assert code_of(client.head_object, **key, IfMatch='"other"') == (412, "412")
    assert code_of(client.get_object, **key, IfNoneMatch=tag) == (304, "304")
    assert client.get_object(**key, IfNoneMatch='"other"')["ContentLength"] == 10
    assert code_of(client.get_object, **key, IfModifiedSince=date) == (304, "304")
    before = date - timedelta(seconds=1)
    assert client.get_object(**key, IfModifiedSince=before)["ContentLength"] == 10
    # If-None-Match decides where both are sent, by RFC 9110.
    both = client.get_object(**key, IfModifiedSince=date, IfNoneMatch='"other"')
    assert both["ContentLength"] == 10


@pytest.mark.parametrize("date", ["yesterday", "", "Sat, 99 Nov 9999 99:99:99 GMT", "0", "\xe4"])
def test_a_date_that_cannot_be_read_is_ignored(s3: S3Served, date: str) -> None:
    headers = {**s3.signed("/s3/views/llama-2/config.json"), "If-Modified-Since": date}
    assert s3.ask("/s3/views/llama-2/config.json", headers).status == 200


def test_checksums_are_sent_where_they_are_known(s3: S3Served, client: Any) -> None:
    """boto3 verifies them, since it asks for checksums by itself and awscrt is installed."""
    files = s3.shelf.views["llama"]["main"].view.files
    assert len(files) > 2
    for path, file in files.items():
        expected = digest_of_bytes(b"".join(file.read()), 0).to_bytes(8, "big")
        for call in (client.get_object, client.head_object):
            got = call(Bucket="views", Key=f"llama/{path}", ChecksumMode="ENABLED")
            assert got["ChecksumCRC64NVME"] == base64.b64encode(expected).decode()
            assert got["ChecksumType"] == "FULL_OBJECT"
        part = client.get_object(Bucket="views", Key=f"llama/{path}", Range="bytes=0-1")
        assert "ChecksumCRC64NVME" not in part
    unknown = client.get_object(Bucket="views", Key="plain/model.safetensors")
    assert "ChecksumCRC64NVME" not in unknown and "ChecksumType" not in unknown
    unasked = s3.get("/s3/views/llama-2/config.json")
    assert unasked.status == 200 and "x-amz-checksum-crc64nvme" not in unasked.headers


def test_nothing_else_is_allowed(client: Any, s3: S3Served) -> None:
    key = {"Key": "llama-2/config.json"}
    assert code_of(client.put_object, **key, Body=b"x") == (405, "MethodNotAllowed")
    assert code_of(client.put_object, **key, Body=b"x" * (2 << 20))[0] in (405, 413)
    assert code_of(client.delete_object, **key) == (405, "MethodNotAllowed")
    assert code_of(client.create_multipart_upload, **key) == (405, "MethodNotAllowed")
    assert code_of(client.create_bucket) == (405, "MethodNotAllowed")
    for call in ("get_object_acl", "get_object_tagging", "get_object_torrent"):
        assert code_of(getattr(client, call), **key) == (501, "NotImplemented")
    for call in ("get_bucket_acl", "get_bucket_versioning", "list_object_versions"):
        assert code_of(getattr(client, call)) == (501, "NotImplemented")
    allowed = s3.ask("/s3/views/x", method="DELETE")
    assert (allowed.code, allowed.headers["allow"]) == ("MethodNotAllowed", "GET, HEAD")
    assert s3.ask("/s3/views", method="PROPFIND").code == "MethodNotAllowed"


@pytest.mark.parametrize(
    "key",
    [
        "llama", "llama/", "llama/none", "none/config.json", "secret/config.json", f"llama@{OLD[:-1]}0/config.json", "llama@x/config.json",
        "llama-2/../llama-2/config.json", "llama-2//config.json", "/llama-2/config.json", "../views/llama-2/config.json", "llama-2/config.json/",
        "@/config.json", "llama-2/%63onfig.json", "llama-2/config.json\u0001", "llama-2/\u202e", "x" * 900,
    ],
)  # fmt: skip
def test_a_key_that_is_not_there_is_none(client: Any, key: str) -> None:
    assert code_of(client.get_object, Key=key) == (404, "NoSuchKey")
    assert code_of(client.head_object, Key=key) == (404, "404")


def test_a_hidden_view_is_not_told_from_none(client: Any) -> None:
    def said(name: str) -> str:
        with pytest.raises(ClientError) as raised:
            client.get_object(Bucket="views", Key=f"{name}/config.json")
        return str(raised.value).replace(name, "NAME")

    assert said("secret") == said("absent")
    assert client.list_objects_v2(Bucket="views", Prefix="secret/")["KeyCount"] == 0


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (GONE, 410, "Gone"), (CHANGED, 409, "SourceChanged"), (NO_VIEW, 409, "NoView"), (TOO_MANY, 503, "SlowDown"),
    ],
)  # fmt: skip
def test_problems_of_the_catalogue_keep_their_text(
    s3: S3Served, client: Any, monkeypatch: pytest.MonkeyPatch, kind: Any, status: int, code: str
) -> None:
    problem = ProblemError(kind, "a < text & its remedy; read it", headers={"Retry-After": "5"})
    monkeypatch.setitem(s3.shelf.failing, "nothing", problem)
    found = s3.get("/s3/views/llama-2/nothing")
    assert (found.status, found.code, found.message) == (status, code, problem.detail)
    assert found.headers["retry-after"] == "5"
    assert code_of(client.get_object, Key="llama-2/nothing") == (status, code)
    monkeypatch.setitem(s3.shelf.failing, "llama.b", problem)
    assert s3.get("/s3/views/llama.b/config.json").code == code
    assert s3.get("/s3/views?list-type=2&prefix=llama.b%2F").code == code
    assert s3.get("/s3/views?list-type=2").code == code  # no partial list


def test_presigned_urls_are_good_for_their_time(client: Any) -> None:
    def url(seconds: int = 60, **more: str) -> str:
        params = {"Bucket": "views", "Key": "llama-2/deep/er/a.bin", **more}
        found: str = client.generate_presigned_url("get_object", params, seconds)
        return found

    assert httpx.get(url()).content == b"0123456789"
    assert httpx.get(url(), headers={"Range": "bytes=2-3"}).content == b"23"
    attached = 'attachment; filename="a b.bin"'
    shown = httpx.get(url(ResponseContentType="text/html", ResponseContentDisposition=attached))
    assert shown.headers["content-type"] == "text/html"
    assert shown.headers["content-disposition"] == attached
    assert shown.headers["content-security-policy"] == "sandbox"
    evil = httpx.get(url(ResponseContentType="a\r\nX-Evil: 1"))
    assert evil.status_code == 501 and "x-evil" not in evil.headers
    for other in (
        url().replace("a.bin", "b.bin"),
        f"{url()}&partNumber=1",
        f"{url()}&X-Amz-Expires=9",
    ):
        assert "<Code>SignatureDoesNotMatch</Code>" in httpx.get(other).text
    assert httpx.head(url()).status_code == 403
    longest = 7 * 24 * 3600
    assert httpx.get(url(longest)).status_code == 200
    too_long = httpx.get(url(longest + 1))
    assert too_long.status_code == 400 and "at most 7 days" in too_long.text


def test_checksums_of_presigned_urls(client: Any) -> None:
    params = {"Bucket": "views", "Key": "llama-2/config.json", "ChecksumMode": "ENABLED"}
    url = client.generate_presigned_url("get_object", params)
    assert httpx.get(url).status_code == 403  # the header is signed
    got = httpx.get(url, headers={"x-amz-checksum-mode": "ENABLED"})
    assert got.headers["x-amz-checksum-type"] == "FULL_OBJECT"


def test_obstore_lists_and_reads(s3: S3Served) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        "views", endpoint=f"{s3.url}/s3", access_key_id="ann", region="x", virtual_hosted_style_request=False,
        secret_access_key="a secret of sixteen letters or more", client_options={"allow_http": True},
    )  # fmt: skip
    listed = [each["path"] for page in store.list("llama") for each in page]
    assert sorted(listed) == [key for key in all_keys(s3) if key.startswith("llama/")]
    prefixes = store.list_with_delimiter()["common_prefixes"]
    assert sorted(prefixes) == ["llama", "llama-2", "llama.b", "plain"]
    got = bytes(store.get("llama/model.safetensors.index.json").bytes())
    assert json.loads(got)["weight_map"]
    path = next(key for key in listed if key.endswith(".safetensors"))
    whole = b"".join(s3.shelf.views["llama"]["main"].view.files[path.partition("/")[2]].read())
    assert bytes(store.get_range(path, start=3, end=40)) == whole[3:40]
    ranges = obstore.get_ranges(store, path, starts=[0, 2000], ends=[8, 2300])
    assert list(map(bytes, ranges)) == [whole[:8], whole[2000:2300]]


@pytest.fixture
def odd(tmp_path: Path, s3: S3Served) -> Iterator[list[str]]:
    names = [
        "a b", "a+b", "a%2Bb", "a~b", "ä/ö", "日本", "(1)!*'", "a&b=c?d#e", "\U0001f600", "\ufffd", "a:b@c$d", "x;y,z", "<k>", "per%20cent",
    ]  # fmt: skip
    s3.shelf.add("odd", Made.of(tmp_path, {name: name.encode() for name in names}), OLD)
    yield names
    del s3.shelf.views["odd"]


def test_odd_keys(client: Any, odd: list[str]) -> None:
    for call in ("list_objects_v2", "list_objects"):
        pages = client.get_paginator(call).paginate(
            Bucket="views", Prefix="odd/", PaginationConfig={"PageSize": 2}
        )
        listed = [each["Key"] for page in pages for each in page["Contents"]]
        assert listed == sorted((f"odd/{name}" for name in odd), key=lambda key: key.encode())
    for name in odd:
        key = f"odd/{name}"
        assert client.get_object(Bucket="views", Key=key)["Body"].read() == name.encode()
        found = client.list_objects_v2(Bucket="views", Prefix=key, Delimiter="?")
        assert found["KeyCount"] == 1 and found["Prefix"] == key
        params = {"Bucket": "views", "Key": key}
        got = httpx.get(client.generate_presigned_url("get_object", params))
        assert got.content == name.encode()
