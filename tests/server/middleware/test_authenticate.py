"""Authentication: the body of an unknown caller is never read, and a session cookie alone allows no change."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from reshard_server.auth.sessions import PLAIN_NAME

from tests.server.live import PATIENCE_SECONDS, Live, live
from tests.server.served import Served
from tests.server.tokens import TOKENS

URL = "/v1/conversions"
BROKEN: list[dict[str, Any]] = [
    {"content": b'{"a":', "headers": {"Content-Type": "application/json"}},
    {"content": b"\xff\xfe", "headers": {"Content-Type": "application/json"}},
    {"content": b"a=b", "headers": {"Content-Type": "text/plain"}},
    {"json": {"source": 1}},
    {"json": {}},
    {"content": b"x" * 3_000_000},
    {"params": {"page_size": "no", "x": "\0"}},
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_stranger_is_refused_first(served: Served, broken: dict[str, Any]) -> None:
    tokens = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic " + TOKENS["ann"][0]})
    paths = (URL, f"{URL}/x", "/v1/nothing", "/metrics")
    for method, path, headers in product(("POST", "GET", "DELETE"), paths, tokens):
        more = {**broken, "headers": {**broken.get("headers", {}), **headers}}
        answer = served.ask(method, path, None, **more)
        assert answer.status_code == 401, answer.text
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.headers["X-Request-Id"]
        assert answer.json()["detail"] == (
            "a valid bearer token was expected in the Authorization header; send 'Authorization: Bearer TOKEN'"
        )


def test_health_needs_no_token(served: Served) -> None:
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert served.ask("GET", path, None).status_code == 200


def test_strangers_are_counted_by_address(serve: Callable[..., Served]) -> None:
    served = serve(requests_per_minute=2)
    answers = [served.ask("POST", URL, None, content=b"{") for _ in range(3)]
    assert [a.status_code for a in answers] == [401, 401, 429]
    assert int(answers[2].headers["Retry-After"]) > 0
    assert served.ask("GET", URL, "ann").status_code == 200


def session_of(served: Served, who: str) -> dict[str, str]:
    session = served.app.state.services.sessions.begin(TOKENS[who][0])
    return {"Cookie": f"{PLAIN_NAME}={session.cookie}"}


def test_a_session_may_look_but_not_change(served: Served) -> None:
    made = served.create("ann")
    cookie = session_of(served, "ann")
    assert served.ask("GET", f"{URL}/{made}", None, headers=cookie).json()["id"] == made
    for method, path in (("POST", URL), ("POST", f"{URL}/{made}:cancel"), ("DELETE", f"{URL}/{made}")):  # fmt: skip
        assert served.ask(method, path, None, headers=cookie).status_code == 401
    other = session_of(served, "bob")
    assert served.ask("GET", f"{URL}/{made}", None, headers=other).status_code == 404
    assert served.ask("GET", URL, None, headers={"Cookie": f"{PLAIN_NAME}=x"}).status_code == 401


def test_a_token_counts_more_than_a_session(served: Served) -> None:
    cookie = session_of(served, "ann")
    assert served.ask("POST", URL, "eve", headers=cookie, json={}).status_code == 403
    wrong = {**cookie, "Authorization": "Bearer wrong"}
    assert served.ask("GET", URL, None, headers=wrong).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil", "", "127.0.0.1.nip.io:80"])  # fmt: skip
def test_without_tokens_only_this_machines_names_are_answered(
    serve: Callable[..., Served], host: str
) -> None:
    served = serve(insecure=True, tokens=())
    for path in (URL, "/livez", "/openapi.json"):
        answer = served.ask("GET", path, None, headers={"Host": host})
        assert (answer.status_code, answer.json()["type"]) == (421, "urn:reshard:problem:misdirected-request")  # fmt: skip
        assert answer.json()["detail"] == (
            f"the request is for the host {host!r}, but a server without tokens answers only to localhost and 127.0.0.1; "
            "send the request to one of these, or run the server with tokens"
        )
    for own in ("localhost", "127.0.0.1:8080", "[::1]", "[::1]:80", "LOCALHOST:1"):
        assert served.ask("GET", URL, None, headers={"Host": own}).status_code == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("gate"), module="tests.server.idle") as found:
        yield found


def answer_to(server: Live, data: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def test_a_stranger_who_waits_with_his_body_need_not_send_it(server: Live) -> None:
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    answer = answer_to(server, head.encode())
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_a_stranger_with_a_large_body_gets_to_read_the_refusal(server: Live) -> None:
    body = b"x" * 4_000_000
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    head_of_answer, _, document = answer_to(server, head.encode() + body).partition(b"\r\n\r\n")
    assert head_of_answer.startswith(b"HTTP/1.1 401 ")
    assert json.loads(document)["type"] == "urn:reshard:problem:unauthenticated"


def test_no_cookie_is_ever_logged(server: Live, tmp_path: Path) -> None:
    secret = hashlib.sha256(str(tmp_path).encode()).hexdigest()
    head = f"GET {URL} HTTP/1.1\r\nHost: x\r\nCookie: {PLAIN_NAME}={secret}\r\nX-Request-Id: cookie\r\nConnection: close\r\n\r\n"
    assert answer_to(server, head.encode()).startswith(b"HTTP/1.1 401 ")
    assert server.line(lambda x: x.get("request_id") == "cookie")
    assert secret not in server.log.read_text()
