"""``Expect: 100-continue``: a body that would be thrown away is never asked for."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from reshard_server.auth.sessions import PLAIN_NAME

from tests.server.live import Live, live
from tests.server.tokens import TOKENS

ONE = json.dumps({"source": "data/a", "target": "data/b"}).encode()
FORM = "Content-Type: application/x-www-form-urlencoded"
LIMIT = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("expecting")
    with live(folder, module="tests.server.idle", body_bytes=LIMIT) as found:
        yield found


def connect(server: Live) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def head(method: str, path: str, *more: str, who: str | None = "ann", length: int = 100) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Expect: 100-continue", *more]
    lines += [f"Authorization: Bearer {TOKENS[who][0]}"] if who in TOKENS else []
    if not any(line.startswith("Transfer-Encoding") for line in more):
        lines.append(f"Content-Length: {length}")
    if not any(line.startswith("Content-Type") for line in more):
        lines.append("Content-Type: application/json")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answer_to(server: Live, data: bytes) -> bytes:
    """Everything that is sent until the server closes the connection; the body is not sent."""
    with connect(server) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def cookie_of(server: Live, who: str) -> str:
    with server.client(None) as client:
        data = {"token": TOKENS[who][0]}
        answer = client.post("/sign-in", data=data, headers={"Origin": server.url})
        return f"Cookie: {PLAIN_NAME}={answer.cookies[PLAIN_NAME]}"


@pytest.fixture(scope="module")
def bobs(server: Live) -> str:
    """The id of a conversion that is bob's; a layout and a schedule of his are called so."""
    layout = {"layout": {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []}}
    schedule = {"when": {"directory": "data/run"}, "targets": [{"target": "data/o/{step}"}]}
    with server.client("bob") as bob:
        assert bob.put("/v1/layouts/bobs", json=layout).status_code == 201
        assert bob.put("/v1/schedules/bobs", json=schedule).status_code == 201
        found: str = bob.post("/v1/conversions", json=json.loads(ONE)).json()["id"]
    return found


@pytest.mark.parametrize(
    ("status", "method", "path", "more"),
    [
        (401, "POST", "/v1/conversions", {"who": None}),
        (401, "POST", "/v1/nothing", {"who": None}),
        (401, "POST", "/v1/conversions", {"more": ["Authorization: Bearer wrong"], "who": None}),
        (401, "POST", "/new-conversion", {"more": [FORM], "who": None}),
        (401, "POST", "/conversions/none/cancel", {"more": [FORM], "who": None}),
        (403, "POST", "/v1/conversions", {"who": "eve"}),
        (403, "PUT", "/v1/layouts/new", {"who": "eve"}),
        (403, "POST", "/v1/checkpoints:fingerprint", {"who": "eve"}),
        (403, "PUT", "/v1/layouts/bobs", {}),
        (403, "POST", "/v1/conversions", {"more": ["Origin: http://evil.example"]}),
        (403, "POST", "/sign-in", {"more": ["Sec-Fetch-Site: cross-site", FORM], "who": None}),
        (404, "POST", "/v1/nothing", {}),
        (404, "POST", "/nothing", {"who": None}),
        (404, "POST", "/v1/conversions/none:cancel", {}),
        (404, "POST", "/v1/conversions/BOBS:cancel", {}),
        (404, "DELETE", "/v1/conversions/BOBS", {}),
        (404, "POST", "/v1/schedules/none:run", {}),
        (404, "POST", "/v1/schedules/bobs:run", {}),
        (405, "PATCH", "/v1/conversions", {}),
        (413, "POST", "/v1/conversions", {"length": LIMIT + 1}),
        (413, "POST", "/sign-in", {"length": LIMIT + 1, "more": [FORM], "who": None}),
        (431, "POST", "/v1/conversions", {"more": ["X: " + "x" * 17_000]}),
    ],
)  # fmt: skip
def test_it_is_refused_before_the_body(
    server: Live, bobs: str, status: int, method: str, path: str, more: dict[str, object]
) -> None:
    lines = more.pop("more", []) if "more" in (more := dict(more)) else []
    data = head(method, path.replace("BOBS", bobs), *lines, **more)
    answer = answer_to(server, data)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:300]
    assert b" 100 " not in answer.partition(b"\r\n")[0]
    assert b"\r\nConnection: close\r\n" in answer or b"\r\nconnection: close\r\n" in answer


def test_pages_look_who_it_is_first(server: Live, bobs: str) -> None:
    eve, ann = cookie_of(server, "eve"), cookie_of(server, "ann")
    for status, cookie, path in (
        (403, eve, "/new-conversion"),
        (404, ann, f"/conversions/{bobs}/cancel"),
        (404, ann, "/schedules/bobs/pause"),
    ):
        answer = answer_to(server, head("POST", path, cookie, FORM, who=None))
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:300]


def test_what_follows_a_refusal_is_no_request(server: Live) -> None:
    """Some clients send the body all the same: it must not be taken for a request, nor a request for it."""
    inner = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = answer_to(server, head("POST", "/v1/conversions", who=None, length=50) + inner * 3)
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_wanted_is_asked_for(server: Live, chunked: bool) -> None:
    how = ["Transfer-Encoding: chunked"] if chunked else []
    with connect(server) as connection:
        connection.sendall(head("POST", "/v1/conversions", *how, length=len(ONE)))
        first = connection.recv(65536)
        assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(ONE), ONE) if chunked else ONE)
        answer = b""
        while b'"id"' not in answer:
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 202 ")
        assert b"onnection: close" not in answer
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_chunked_body_that_turns_out_too_large(server: Live) -> None:
    with connect(server) as connection:
        connection.sendall(head("POST", "/v1/conversions", "Transfer-Encoding: chunked"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        chunk = b"x" * (LIMIT + 1)
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(chunk), chunk))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
