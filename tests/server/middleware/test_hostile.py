"""Broken, hostile and oversized requests: each is answered with a problem, and the server continues."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from reshard_server.middleware import body_limits as limits
from reshard_server.settings import Settings
from starlette.types import Message, Receive, Scope, Send

from tests.server.live import PATIENCE_SECONDS, Live, live
from tests.server.tokens import TOKENS

URL = "/v1/conversions"
AUTH = f"Authorization: Bearer {TOKENS['ann'][0]}"
BODY_BYTES = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("hostile")
    with live(folder, body_bytes=BODY_BYTES, header_bytes=4096, requests_per_minute=10**6) as found:
        yield found


def raw(
    server: Live, data: bytes, seconds: float = PATIENCE_SECONDS
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the server's answer to these bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        answer = b""
        with suppress(ConnectionError):  # it is answered and closed before all was read
            connection.sendall(data)
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


def post(
    body: bytes, *more: str, length: int | None = None, kind: str = "application/json"
) -> bytes:
    head = [
        f"POST {URL} HTTP/1.1", "Host: x", AUTH, f"Content-Type: {kind}", *more,
        *([] if any("chunked" in m for m in more) else [f"Content-Length: {length or len(body)}"]),
        "Connection: close",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def get(path: str, *more: str) -> bytes:
    head = [f"GET {path} HTTP/1.1", "Host: x", AUTH, *more, "Connection: close"]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n"


def chunked(body: bytes) -> bytes:
    parts = [body[i : i + 5000] for i in range(0, len(body), 5000)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


ONE = {"source": "data/a", "target": "data/b"}
LARGE = json.dumps({**ONE, "select": ["x" * 900] * 100}).encode()
DEEP = b'{"source":"data/a","target":"data/b","layout":' + b'{"a":' * 900 + b"1" + b"}" * 901
WIDE = b"{" + b",".join(b'"k%d":1' % i for i in range(1500)) + b',"k7":1}'


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"hello\r\n\r\n", 400, "this is not an HTTP/1.1 request"),
        (b"GET / HTTP/9\r\n\r\n", 400, "this is not an HTTP/1.1 request"),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400, "this is not an HTTP/1.1 request"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nA" + b"a" * 60_000, 431, "more than 20480 bytes"),
        (get("/livez", "X-Large: " + "a" * 5000), 431, "this server accepts 4096"),
        (get("/livez?" + "a" * 5000), 431, "this server accepts 4096"),
        (get("/v1/conversions?source=%00"), 400, "NUL"),
        (get("/v1/conversions/%00"), 400, "NUL"),
        (get("/v1/conversions/" + "%2e%2e%2f" * 9), 404, ""),
        (get("/v1/conversions/" + "x" * 200), 422, "id"),
        (post(LARGE), 413, "larger than the 20000 bytes"),
        (post(chunked(LARGE), "Transfer-Encoding: chunked"), 413, "larger than the 20000 bytes"),
        (post(b"{}", kind="text/plain"), 415, "the body is 'text/plain'; expected application/json"),
        (post(b"a=1", kind="application/x-www-form-urlencoded"), 415, "application/json"),
        (post(gzip.compress(b"{}", mtime=0), "Content-Encoding: gzip"), 415, "the body's Content-Encoding is 'gzip', but this server decodes no body; send it as it is"),
        (post(b"{}", "Content-Encoding: identity, br"), 415, "Content-Encoding is 'identity, br'"),
        (post(b"{}", "Content-Encoding: identity"), 422, "it is missing"),
        (get("http://user@x/livez"), 404, "there is no such path"),
        (post(b""), 422, "body"),
        (post(b"{"), 400, "the body is not valid JSON for this server"),
        (post(b"\xff\xfe"), 400, "the body is not valid JSON for this server"),
        (post(b'{"priority": NaN}'), 400, "NaN is not a JSON number"),
        (post(b'{"priority": 1e999}'), 400, "too large a number"),
        (post(b'{"priority": ' + b"9" * 5000 + b"}"), 400, "a number has 5000 digits"),
        (post(b'{"source": "a", "source": "b"}'), 400, "the member 'source' occurs twice"),
        (post(WIDE), 400, "the member 'k7' occurs twice"),
        (post(b'{"source": "\\u0000"}'), 400, "NUL"),
        (post(b'{"source": "\\ud800"}'), 400, "surrogate"),
        (post(b'{"\\ud800": 1}'), 400, "surrogate"),
        (post(DEEP), 400, "nested deeper than 64 levels"),
        (post(b"[" * 19_000), 400, "the body is not valid JSON for this server"),
        (post(b"[1]"), 422, ""),
        (post(b"null"), 422, ""),
    ],
)  # fmt: skip
def test_refused(server: Live, data: bytes, status: int, words: str) -> None:
    found, headers, body = raw(server, data)
    assert (found, headers["content-type"]) == (status, "application/problem+json"), body
    document = json.loads(body)
    assert (document["status"], document["type"][:20]) == (status, "urn:reshard:problem:")
    assert words in document["detail"]
    assert (document["title"] == "The body must be plain JSON") == (status == 415)


def test_a_length_above_the_limit_is_refused_before_the_body(server: Live) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(post(b"", length=BODY_BYTES + 1))
        answer = b""
        while b"larger than the 20000 bytes" not in answer:
            part = connection.recv(65536)
            assert part, answer
            answer += part
        assert answer.startswith(b"HTTP/1.1 413 ")
        connection.sendall(b" " * (BODY_BYTES + 1))  # whose end is no request
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("target", ["/livez", "http://elsewhere/livez", "HTTPS://[::1]:1/livez"])
def test_a_target_has_two_forms(server: Live, target: str) -> None:
    assert raw(server, get(target))[::2] == (200, b'{"status":"ok"}')
    assert raw(server, get(target.replace("livez", "v1/tensors?name=x")))[0] == 422


def test_a_target_may_be_a_host_alone(server: Live) -> None:
    assert raw(server, get("http://elsewhere"))[0] == 401  # as for /


def test_half_a_body_is_no_request(server: Live) -> None:
    whole = json.dumps({**ONE, "labels": {"half": "body"}}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(post(whole, length=len(whole) + 1))
    with server.client() as client:
        client.post(URL, json={**ONE, "labels": {"whole": "body"}})
        found = client.get(URL, params={"label": "half=body"}).json()["conversions"]
        assert found == []
        assert len(client.get(URL, params={"label": "whole=body"}).json()["conversions"]) == 1


def test_a_body_that_takes_too_long() -> None:
    sent: list[Message] = []

    async def never() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": URL, "query_string": b"", "headers": []}
    asyncio.run(limits.BodyLimits(app, Settings(body_seconds=0.01))(scope, never, send))
    assert sent[0]["status"] == 408
    assert b"the body did not arrive within 0.01 seconds; send it at once" in sent[1]["body"]


def test_a_request_id_is_taken_where_it_is_sane(server: Live) -> None:
    assert raw(server, get("/livez", "X-Request-Id: run-7.a_b"))[1]["x-request-id"] == "run-7.a_b"
    for odd in ("a b", "x" * 65, 'x"y', "\xe4"):
        found = raw(server, get("/livez", f"X-Request-Id: {odd}"))[1]["x-request-id"]
        assert len(found) == 24 and int(found, 16) >= 0


def test_nothing_that_is_broken_breaks_the_server(server: Live) -> None:
    chance = random.Random(7)
    good = [post(json.dumps(ONE).encode()), get(f"{URL}?page_size=3"), get("/metrics"), post(chunked(LARGE[:9000]), "Transfer-Encoding: chunked")]  # fmt: skip
    seen = set()
    for _ in range(100):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(data))
            data[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 4))
        try:
            status, headers, _ = raw(server, bytes(data), 0.2)
        except TimeoutError:
            continue  # it waits for more than was sent
        seen.add(status)
        assert status < 500
        assert status < 400 or headers["content-type"] == "application/problem+json"
    assert {400, 401} <= seen
    assert server.process.poll() is None
    assert not [line for line in server.lines() if line["level"] == "error"]


def test_no_secret_is_ever_logged(server: Live) -> None:
    secret = TOKENS["ann"][0]
    raw(server, get(f"{URL}?token={secret}&source={secret}", f"Cookie: session={secret}"))
    raw(server, get(f"{URL}/Bearer%20{secret}"))
    raw(server, post(json.dumps({**ONE, "labels": {"token": secret}}).encode()))
    raw(server, b"GET / HTTP/1.1\r\n" + f"{AUTH}\r\nX".encode() + b"\0\r\n\r\n")
    raw(server, get("/livez", "X-Request-Id: the-last"))
    assert server.line(lambda x: x.get("path") == "/v1/conversions/Bearer [struck out]")
    assert server.line(lambda x: x.get("request_id") == "the-last")
    text = server.log.read_text()
    assert secret not in text
    assert Path(server.log).stat().st_size > 1000


def test_every_line_is_json_and_names_request_and_conversion(server: Live) -> None:
    body = post(json.dumps(ONE).encode(), "X-Request-Id: made-here")
    made = json.loads(raw(server, body)[2])["id"]
    line = server.line(lambda x: x.get("request_id") == "made-here" and "path" in x)
    assert line["message"] == "request"
    assert (line["method"], line["path"], line["status"]) == ("POST", URL, 202)
    assert (line["caller"], line["conversion"]) == ("ann", made)
    assert line["milliseconds"] > 0
