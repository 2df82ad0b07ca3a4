"""Slices by HTTP: the right bytes, ranges, tags, digests, and refusals before the first byte."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest

import reshard
from tests.orbax_trees import expected_arrays, small_tree
from tests.server.api.tensors.large import LARGE
from tests.server.live import Live, live
from tests.server.threads import run_together
from tests.server.tokens import TOKENS

URL = "/v1/tensors"
RAW = {"checkpoint": "data/raw", "name": "w"}
ARRAYS = expected_arrays(small_tree())


def test_every_tensor_of_a_stock_checkpoint(client: httpx.Client) -> None:
    for name, array in [*ARRAYS.items()][::3]:
        found = client.get(URL, params={"checkpoint": "data/small", "name": name})
        assert found.content == array.tobytes(), name
        assert json.loads(found.headers["X-Reshard-Shape"]) == list(array.shape)
        assert found.headers["X-Reshard-Dtype"] == str(array.dtype)
        assert found.headers["Content-Type"] == "application/octet-stream"
        assert int(found.headers["Content-Length"]) == array.nbytes


def test_a_slice_in_another_dtype(client: httpx.Client) -> None:
    found = client.get(URL, params={**RAW, "slice": "128:256,:10", "dtype": "bfloat16"})
    expected = LARGE[128:256, :10].astype(ml_dtypes.bfloat16)
    assert (found.status_code, found.content) == (200, expected.tobytes())
    assert found.headers["X-Reshard-Shape"] == "[128, 10]"
    assert found.headers["X-Reshard-Dtype"] == "bfloat16"
    assert found.headers["X-Reshard-Slice"] == "128:256,0:10"
    assert "Repr-Digest" not in found.headers


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=4000001-5000002", 4000001, 5000003), ("bytes=8388600-", 8388600, 8388608),
     ("bytes=-5", 8388603, 8388608), ("bytes=-99999999", 0, 8388608), ("bytes=8388607-99999999", 8388607, 8388608)],
)  # fmt: skip
def test_ranges(client: httpx.Client, asked: str, start: int, stop: int) -> None:
    found = client.get(URL, params=RAW, headers={"Range": asked})
    assert (found.status_code, found.content) == (206, LARGE.tobytes()[start:stop])
    assert found.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{LARGE.nbytes}"


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,5-6", "rows=1-2", "bytes=5-1", "bytes=-", "bytes=a-b", "5"]
)
def test_what_is_no_single_range_is_left_unread(client: httpx.Client, asked: str) -> None:
    with client.stream("GET", URL, params=RAW, headers={"Range": asked}) as found:
        assert found.status_code == 200
        assert found.headers["Content-Length"] == str(LARGE.nbytes)


def test_a_range_without_a_byte(client: httpx.Client) -> None:
    found = client.get(URL, params=RAW, headers={"Range": "bytes=8388608-"})
    assert found.status_code == 416
    assert found.headers["Content-Range"] == "bytes */8388608"
    assert found.json()["detail"] == (
        "the range 'bytes=8388608-' has none of the 8388608 bytes; request bytes within them"
    )


def test_a_download_goes_on_where_it_was_unless_the_files_changed(
    served: Live, client: httpx.Client, tmp_path: Path
) -> None:
    data = served.log.parent / "data"
    copy = data / tmp_path.name
    shutil.copytree(data / "raw", copy)
    params = {"checkpoint": f"data/{tmp_path.name}", "name": "w"}
    first = client.get(URL, params=params, headers={"Range": "bytes=0-99"})
    more = {"Range": "bytes=100-", "If-Range": first.headers["ETag"]}
    rest = client.get(URL, params=params, headers=more)
    assert rest.status_code == 206
    assert first.content + rest.content == LARGE.tobytes()
    chunk = next((copy / "w").glob("3*"))
    chunk.write_bytes(chunk.read_bytes())
    anew = client.get(URL, params=params, headers=more)
    assert (anew.status_code, anew.content) == (200, LARGE.tobytes())
    assert anew.headers["ETag"] != first.headers["ETag"]


def test_tags(client: httpx.Client) -> None:
    tag = client.head(URL, params=RAW).headers["ETag"]
    assert tag[0] == tag[-1] == '"'
    for known in (tag, f'W/{tag}, "x"', "*"):
        for method in ("GET", "HEAD"):
            again = client.request(method, URL, params=RAW, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["ETag"] == tag
    assert client.head(URL, params=RAW, headers={"If-None-Match": '"x"'}).status_code == 200
    others = [{"slice": "0:1"}, {"slice": "1:2"}, {"dtype": "float16"}]
    tags = {client.head(URL, params={**RAW, **other}).headers["ETag"] for other in others}
    assert len(tags | {tag}) == 4
    assert client.head(URL, params={**RAW, "slice": ":,:"}).headers["ETag"] == tag


def test_head_tells_what_get_sends(client: httpx.Client) -> None:
    head = client.head(URL, params=RAW)
    found = client.get(URL, params=RAW)
    assert head.content == b""
    ours = ("content-", "etag", "x-reshard", "accept-ranges", "repr-digest")
    assert {k: v for k, v in head.headers.items() if k.startswith(ours)} == {
        k: v for k, v in found.headers.items() if k.startswith(ours)
    }


def test_a_recorded_digest_is_told_before_the_bytes(served: Live, client: httpx.Client) -> None:
    info = reshard.inspect(served.log.parent / "data" / "known")
    digests = {name: t.digest for name, t in info.tensors.items()}
    for headers in ({}, {"Range": "bytes=5-9"}):
        params = {"checkpoint": "data/known", "name": "w"}
        found = client.get(URL, params=params, headers=headers).headers["Repr-Digest"]
        octets = base64.b64decode(found.removeprefix("crc64nvme=:").removesuffix(":"))
        assert octets.hex() == digests["w"]


def test_damage_midway_cuts_the_connection(served: Live, client: httpx.Client) -> None:
    got = 0
    with (
        pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"),
        client.stream("GET", URL, params={"checkpoint": "data/damaged", "name": "w"}) as found,
    ):
        assert found.status_code == 200
        for piece in found.iter_raw():
            got += len(piece)
    assert 0 < got < LARGE.nbytes * 2
    said = served.line(lambda x: x["message"] == "a stream was cut off")
    assert "tensor 'w', chunk [5, 0]" in said["detail"]
    assert client.get("/readyz").status_code == 200


def test_damage_in_the_first_bytes_is_a_problem(client: httpx.Client) -> None:
    params = {"checkpoint": "data/damaged", "name": "w", "slice": "1500:1536"}
    found = client.get(URL, params=params)
    assert found.status_code == 422
    assert found.json()["error"] == "CorruptError"
    assert "tensor 'w', chunk [5, 0]" in found.json()["detail"]
    assert "stored in data/damaged/w/5.0" in found.json()["detail"]


REFUSED: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"checkpoint": "data/raw"}, 422, "name",
     "expected either name (a slice of one tensor) or shard (the slices of one device of a layout), but not both; give "
     "one of them"),
    ({**RAW, "shard": 0}, 422, "name", "expected either name (a slice of one tensor) or shard"),
    ({**RAW, "layout": "x"}, 422, "layout", "layout needs shard; leave it out"),
    ({"checkpoint": "data/raw", "shard": 0, "slice": ":"}, 422, "slice", "slice needs name; leave it out"),
    ({**RAW, "name": "v"}, 404, "name", "data/raw has no tensor 'v'; it has 1 (w)"),
    ({**RAW, "slice": "0:9999"}, 422, "slice",
     "the slice [0:9999, 0:2048] reaches outside of 'w', which has the shape [1024, 2048]; choose a slice inside it"),
    ({**RAW, "slice": "1"}, 422, "slice", "where start:stop was expected"),
    ({**RAW, "dtype": "float7"}, 422, "dtype", "no such dtype"),
    ({**RAW, "checkpoint": "data/nothing"}, 404, "checkpoint", "there is nothing at 'data/nothing'"),
    ({**RAW, "checkpoint": "other/raw"}, 404, "checkpoint", "there is nothing at 'other/raw'"),
    ({**RAW, "checkpoint": "data/../raw"}, 422, "checkpoint", "is not a path below a storage root"),
    ({**RAW, "colour": "red"}, 422, "colour", "colour: there is no member of this name"),
    ({"checkpoint": "data/raw", "shard": 9}, 422, None, "shard 9 does not exist: the layout has 8 shards; ask for one"),
    ({"checkpoint": "data/raw", "shard": -1}, 422, "shard", "expected at least 0"),
    ({"checkpoint": "data/raw", "shard": 0, "layout": "none"}, 422, "layout", "the layout 'none' is not stored"),
    ({"checkpoint": "data/raw", "shard": 0, "layout": "{"}, 422, "layout", "the layout is not JSON"),
    ({"checkpoint": "data/raw", "shard": 0, "select": "zz"}, 422, None, "select 'zz' matches none of the 1 names"),
    ({"checkpoint": "data/raw", "shard": 0, "cast": "w"}, 422, "cast", "expected text that matches"),
    ({"checkpoint": "data/small", "shard": 0, "cast": "^numpy$=int4"}, 422, None,
     "'numpy' is int4, which safetensors files do not have; drop it, or cast it to one of bool"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "status", "field", "text"), REFUSED)
def test_refusals(
    served: Live, client: httpx.Client, params: dict[str, Any], status: int, field: str | None, text: str
) -> None:  # fmt: skip
    head, found = client.head(URL, params=params), client.get(URL, params=params)
    assert (head.status_code, head.content, found.status_code) == (status, b"", status)
    problem = found.json()
    assert text in problem["detail"]
    assert problem.get("field") == field
    assert str(served.log.parent) not in found.text


def test_who_may_ask(served: Live) -> None:
    with served.client(None) as client:
        assert client.get(URL, params=RAW).status_code == 401


def test_what_takes_too_much_memory_is_refused_and_few_streams_are_open(tmp_path: Path) -> None:
    wide = np.random.default_rng(0).integers(0, 255, (64, 1 << 20), np.uint8)
    reshard.save(tmp_path / "data" / "c", {"w": wide})
    params = {"checkpoint": "data/c", "name": "w"}
    with live(tmp_path, streams=2, stream_memory=8 << 20) as server, server.client() as client:
        opened = [_stalled(server, params) for _ in range(2)]
        try:
            deadline = time.monotonic() + 120
            while (found := client.get(URL, params=params)).status_code == 200:
                assert time.monotonic() < deadline
            assert (found.status_code, found.headers["Retry-After"]) == (429, "5")
            assert found.json()["detail"].startswith(
                "2 streams are open, the most that this server allows"
            )
            assert client.head(URL, params=params).status_code == 200
        finally:
            for connection in opened:
                connection.close()
        deadline = time.monotonic() + 120
        while (found := client.get(URL, params=params)).status_code == 429:
            assert time.monotonic() < deadline
        assert found.content == wide.tobytes()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0


def _stalled(server: Live, params: dict[str, str]) -> socket.socket:
    """A client that asks, and then takes nothing."""
    url = httpx.URL(server.url)
    connection = socket.create_connection((url.host, url.port or 0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    query = str(httpx.QueryParams(params))
    connection.sendall(
        f"GET {URL}?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ann'][0]}\r\n\r\n".encode()
    )
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_many_at_once_get_each_their_own_bytes(served: Live) -> None:
    def pull(number: int) -> None:
        with served.client() as client:
            for row in range(number, 1000, 256):
                found = client.get(URL, params={**RAW, "slice": f"{row}:{row + 3}"})
                assert found.content == LARGE[row : row + 3].tobytes(), (row, found.status_code)

    run_together([partial(pull, number) for number in range(0, 250, 25)])
