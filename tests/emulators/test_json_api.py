"""What the JSON API of the project's own GCS answers where the clients of ``test_clients.py`` do not look."""

from __future__ import annotations

import http.client
import json
from typing import Any

import obstore
import pytest

from tests.emulators.apis.error_answers import SLOW_DOWN, TOO_MANY_REQUESTS
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.emulators.messages import Response
from tests.emulators.server import Options

CHUNK = 256 << 10


def ask(
    bucket: Bucket, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", bucket.emulator.port, timeout=60)
    connection.request(method, path.format(bucket=bucket.name), body, headers or {})
    answer = connection.getresponse()
    found = Response(answer.status, dict(answer.getheaders()), (answer.read(),))
    connection.close()
    return found


def read(response: Response) -> Any:
    return json.loads(response.body[0])


OBJECT = "/storage/v1/b/{bucket}/o/run%2Fa"
UPLOAD = "/upload/storage/v1/b/{bucket}/o?uploadType="


@pytest.fixture
def bucket(gcs_bucket: Bucket) -> Bucket:
    obstore.put(gcs_bucket.store(), "run/a", b"0123456789", use_multipart=False)
    return gcs_bucket


def test_errors_are_documents(bucket: Bucket) -> None:
    found = ask(bucket, "GET", OBJECT + "?ifGenerationMatch=1")
    assert found.status == 412
    message = "At least one of the pre-conditions you specified did not hold"
    assert read(found)["error"] == {
        "code": 412, "message": message,
        "errors": [{"message": message, "domain": "global", "reason": "conditionNotMet"}],
    }  # fmt: skip
    found = ask(bucket, "GET", "/storage/v1/b/{bucket}/o/none")
    assert read(found)["error"]["message"] == f"No such object: {bucket.name}/none"
    assert ask(bucket, "GET", "/storage/v1/b/none/o").status == 404


def test_errors_of_data_are_texts(bucket: Bucket) -> None:
    found = ask(bucket, "GET", "/storage/v1/b/{bucket}/o/none?alt=media")
    assert (found.status, found.body) == (404, (f"No such object: {bucket.name}/none".encode(),))


def test_faults_strike_this_api_too(bucket: Bucket) -> None:
    bucket.emulator.faults.add(Refuse(SLOW_DOWN), operation="get", key="run/a")
    bucket.emulator.faults.add(Refuse(TOO_MANY_REQUESTS), operation="list")
    assert ask(bucket, "GET", OBJECT + "?alt=media").status == 503
    assert ask(bucket, "GET", OBJECT + "?alt=media").status == 200
    found = read(ask(bucket, "GET", "/storage/v1/b/{bucket}/o"))
    assert found["error"]["errors"][0]["reason"] == "rateLimitExceeded"


@pytest.mark.parametrize(
    ("asked", "status", "found"),
    [("bytes=2-4", 206, b"234"), ("bytes=8-99", 206, b"89"), ("bytes=-3", 206, b"789"), ("bytes=10-12", 416, None)],
)  # fmt: skip
def test_ranges(bucket: Bucket, asked: str, status: int, found: bytes | None) -> None:
    response = ask(bucket, "GET", f"/download{OBJECT}?alt=media", headers={"Range": asked})
    assert response.status == status
    assert found is None or response.body == (found,)


def test_listings_between_two_names(bucket: Bucket) -> None:
    for key in ["a", "b/1", "b/2", "c"]:
        obstore.put(bucket.store(), key, b"")
    found = read(ask(bucket, "GET", "/storage/v1/b/{bucket}/o?startOffset=b&endOffset=c"))
    assert [item["name"] for item in found["items"]] == ["b/1", "b/2"]
    query = "delimiter=/&maxResults=2"
    first = read(ask(bucket, "GET", f"/storage/v1/b/{{bucket}}/o?{query}"))
    assert ([item["name"] for item in first["items"]], first["prefixes"]) == (["a"], ["b/"])
    token = first["nextPageToken"]
    second = read(ask(bucket, "GET", f"/storage/v1/b/{{bucket}}/o?{query}&pageToken={token}"))
    assert ([item["name"] for item in second["items"]], second["prefixes"]) == (["c"], ["run/"])
    assert "nextPageToken" not in second
    assert read(ask(bucket, "GET", "/storage/v1/b/{bucket}/o?prefix=none")) == {"kind": "storage#objects"}  # fmt: skip


def test_checksums_of_uploads_are_compared(bucket: Bucket) -> None:
    right, wrong = {"X-Goog-Hash": "crc32c=Nks/tw=="}, {"X-Goog-Hash": "crc32c=AAAAAA=="}
    url = f"{UPLOAD}media&name=a"
    assert ask(bucket, "POST", url, b"abc", wrong).status == 400
    assert ask(bucket, "GET", "/storage/v1/b/{bucket}/o/a").status == 404
    assert read(ask(bucket, "POST", url, b"abc", right))["crc32c"] == "Nks/tw=="


def start(bucket: Bucket, query: str = "", resource: bytes = b"") -> str:
    found = ask(bucket, "POST", f"{UPLOAD}resumable&name=big{query}", resource)
    assert found.status == 200
    return found.headers["Location"].removeprefix(bucket.emulator.url)


def send(bucket: Bucket, session: str, data: bytes, content_range: str) -> Response:
    return ask(bucket, "PUT", session, data, {"Content-Range": f"bytes {content_range}"})


def test_an_upload_goes_on_where_it_was(bucket: Bucket) -> None:
    data = bytes(range(256)) * 3000
    session = start(bucket)
    found = send(bucket, session, data[:CHUNK], f"0-{CHUNK - 1}/*")
    assert (found.status, found.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    assert "Range" not in send(bucket, start(bucket), b"", "*/*").headers
    assert send(bucket, session, b"", "*/*").headers["Range"] == f"bytes=0-{CHUNK - 1}"
    # What is there already is sent again, after an answer was lost.
    found = send(bucket, session, data[: 2 * CHUNK], f"0-{2 * CHUNK - 1}/*")
    assert found.headers["Range"] == f"bytes=0-{2 * CHUNK - 1}"
    assert ask(bucket, "GET", "/storage/v1/b/{bucket}/o/big").status == 404
    end = len(data) - 1
    found = send(bucket, session, data[2 * CHUNK :], f"{2 * CHUNK}-{end}/{len(data)}")
    assert read(found)["size"] == str(len(data))
    assert read(send(bucket, session, b"", f"*/{len(data)}")) == read(found)
    assert bytes(obstore.get(bucket.store(), "big").bytes()) == data
    counts = bucket.emulator.log.counts()
    assert (counts["start_upload"], counts["put_part"], counts["complete_upload"]) == (2, 2, 1)
    assert {one.key for one in bucket.emulator.log.of("put_part")} == {"big"}


def test_chunks_that_do_not_fit_are_refused(bucket: Bucket) -> None:
    session = start(bucket)
    assert send(bucket, session, b"x" * 10, "0-9/*").status == 400
    assert send(bucket, session, b"x" * CHUNK, f"{CHUNK}-{2 * CHUNK - 1}/*").status == 400
    assert send(bucket, session, b"x" * 10, "0-8/9").status == 400


def test_the_end_of_an_upload_is_checked(bucket: Bucket) -> None:
    session = start(bucket, resource=b'{"crc32c": "AAAAAA=="}')
    assert send(bucket, session, b"abc", "0-2/3").status == 400
    session = start(bucket, "&ifGenerationMatch=0")
    obstore.put(bucket.store(), "big", b"ours")
    assert send(bucket, session, b"abc", "0-2/3").status == 412
    assert ask(bucket, "POST", f"{UPLOAD}resumable&name=big&ifGenerationMatch=0").status == 412
    assert bytes(obstore.get(bucket.store(), "big").bytes()) == b"ours"


def test_an_aborted_upload_is_gone(bucket: Bucket) -> None:
    session = start(bucket)
    assert ask(bucket, "DELETE", session).status == 499
    assert send(bucket, session, b"abc", "0-2/3").status == 404


def test_a_broken_body_is_refused(bucket: Bucket) -> None:
    kind = {"Content-Type": 'multipart/related; boundary="=="'}
    assert ask(bucket, "POST", f"{UPLOAD}multipart", b"nothing", kind).status == 400
    assert ask(bucket, "POST", f"{UPLOAD}resumable&name=a", b"{").status == 400


@pytest.mark.parametrize(("conditions", "status"), [("ignored", 200), ("refused", 501)])
def test_stores_without_conditions(bucket: Bucket, conditions: Any, status: int) -> None:
    bucket.emulator.options = Options(conditions=conditions)
    path = f"{UPLOAD}media&name=run/a&ifGenerationMatch=0"
    assert ask(bucket, "POST", path, b"new").status == status


@pytest.mark.parametrize(
    ("method", "path"), [("PATCH", OBJECT), ("POST", "/batch/storage/v1"), ("PUT", f"{UPLOAD}media&name=a")]
)  # fmt: skip
def test_what_is_not_there_says_so(bucket: Bucket, method: str, path: str) -> None:
    assert ask(bucket, method, path).status == 501


def test_buckets(bucket: Bucket) -> None:
    assert ask(bucket, "POST", "/storage/v1/b?project=tests", b'{"name": "new"}').status == 200
    assert read(ask(bucket, "GET", "/storage/v1/b/new"))["name"] == "new"
    assert ask(bucket, "POST", "/storage/v1/b?project=tests", b'{"name": "new"}').status == 409
    assert ask(bucket, "DELETE", "/storage/v1/b/new").status == 204
    assert ask(bucket, "GET", "/storage/v1/b/new").status == 404
