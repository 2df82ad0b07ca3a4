"""Where a request comes from: nothing is changed for a page of another site, whatever it sends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from reshard_server.auth.sessions import SAFE_METHODS, check_form, check_origin, form_key
from reshard_server.errors.problems import ProblemError
from starlette.datastructures import Headers

from tests.server.changing import changing_routes
from tests.server.live import PATIENCE_SECONDS, Live, live
from tests.server.served import Served

HERE = {"host": "here:8080"}
OWN = {**HERE, "origin": "http://here:8080"}
PUBLIC = "https://reshard.example"

OURS = [
    ({}, "http", None),
    (HERE, "http", None),
    (HERE, "http", PUBLIC),
    (OWN, "http", None),
    (
        {**OWN, "origin": "https://here:8080"},
        "http",
        None,
    ),  # behind what ends TLS and does not say so
    ({"host": "here", "origin": "https://here"}, "https", None),
    ({"host": "here:443", "origin": "https://here"}, "https", None),
    ({"host": "HERE", "origin": "http://here:80"}, "http", None),
    ({"host": "[::1]:8080", "origin": "http://[::1]:8080"}, "http", None),
    ({"host": "10.0.0.7", "origin": PUBLIC}, "http", PUBLIC),
    ({**HERE, "sec-fetch-site": "same-origin"}, "http", None),
    ({**HERE, "sec-fetch-site": "none"}, "http", None),  # a person, without any page
    ({**OWN, "sec-fetch-site": "same-origin"}, "http", None),
]

OTHERS = [
    ({**HERE, "sec-fetch-site": "cross-site"}, "http", None, "Sec-Fetch-Site is 'cross-site'"),
    ({**HERE, "sec-fetch-site": "same-site"}, "http", None, "Sec-Fetch-Site is 'same-site'"),
    ({**HERE, "sec-fetch-site": ""}, "http", None, "Sec-Fetch-Site is ''"),
    ({**OWN, "sec-fetch-site": "cross-site"}, "http", None, "Sec-Fetch-Site is 'cross-site'"),
    ({**HERE, "origin": "null"}, "http", None, "Origin is 'null'"),
    ({**HERE, "origin": "null", "sec-fetch-site": "same-origin"}, "http", None, "Origin is 'null'"),
    ({**HERE, "origin": ""}, "http", None, "Origin is ''"),
    ({**HERE, "origin": "http://evil"}, "http", None, "Origin is 'http://evil'"),
    ({**HERE, "origin": "http://evil", "sec-fetch-site": "none"}, "http", None, "http://evil"),
    ({**HERE, "origin": "http://here:81"}, "http", None, "http://here:81"),
    ({**HERE, "origin": "http://here"}, "http", None, "http://here"),
    ({**HERE, "origin": "http://here.evil:8080"}, "http", None, "here.evil"),
    ({**HERE, "origin": "http://x@here:8080"}, "http", None, "x@here"),
    ({**HERE, "origin": "http://here:8080/"}, "http", None, "http://here:8080/"),
    ({**HERE, "origin": "http://here:8080 http://evil"}, "http", None, "evil"),
    ({**HERE, "origin": "http://here:port"}, "http", None, "here:port"),
    ({**HERE, "origin": "http://[here"}, "http", None, "http://[here"),
    ({**HERE, "origin": "file://here:8080"}, "http", None, "file://"),
    ({"host": "here", "origin": "http://here"}, "https", None, "http://here"),  # not what TLS protects
    ({"origin": "http://here"}, "http", None, "http://here"),
    ({"host": "", "origin": "http://"}, "http", None, "http://"),
    (OWN, "http", PUBLIC, "http://here:8080"),
    ({"host": "reshard.example", "origin": "http://reshard.example"}, "http", PUBLIC, "http://reshard"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "scheme", "public_url"), OURS)
def test_programs_and_our_own_pages(
    headers: dict[str, str], scheme: str, public_url: str | None
) -> None:
    check_origin("POST", Headers(headers), scheme, public_url)


@pytest.mark.parametrize(("headers", "scheme", "public_url", "words"), OTHERS)
def test_pages_of_other_sites(
    headers: dict[str, str], scheme: str, public_url: str | None, words: str
) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "BREW"):
        with pytest.raises(ProblemError) as raised:
            check_origin(method, Headers(headers), scheme, public_url)
        assert raised.value.kind.status == 403
        assert words in raised.value.detail
        assert raised.value.detail.endswith(
            "; open the page again and send its form from there, or leave the header out"
        )
    for method in SAFE_METHODS:
        check_origin(method, Headers(headers), scheme, public_url)


def test_each_of_several_headers_counts() -> None:
    for name, good, bad in (("origin", "http://here", "http://evil"), ("sec-fetch-site", "none", "cross-site")):  # fmt: skip
        for values in ((good, bad), (bad, good)):
            raw = [(b"host", b"here"), *((name.encode(), value.encode()) for value in values)]
            with pytest.raises(ProblemError):
                check_origin("POST", Headers(raw=raw), "http", None)


def test_a_form_says_where_it_comes_from_and_has_its_sessions_key() -> None:
    for headers in (OWN, {**HERE, "sec-fetch-site": "same-origin"}):
        check_form(Headers(headers), None, None)
        check_form(Headers(headers), "cookie", form_key("cookie"))
        for key in (None, "", "ü", form_key(None), form_key("other")):
            with pytest.raises(ProblemError) as raised:
                check_form(Headers(headers), "cookie", key)
            assert (raised.value.kind.status, raised.value.detail) == (
                403,
                "the form belongs to another session; open the page again and send its form from there",
            )
    for headers in (HERE, {**HERE, "sec-fetch-site": "none"}):
        with pytest.raises(ProblemError) as raised:
            check_form(Headers(headers), "cookie", form_key("cookie"))
        assert (raised.value.kind.status, raised.value.detail) == (
            403,
            "the form does not say which page it comes from; open the page again and send its form from there",
        )


def test_the_routes_are_found() -> None:
    found = changing_routes()
    assert len(found) > 20
    assert {("POST", "/v1/schedules/some:pause"), ("POST", "/sign-in")} <= set(found)
    assert {("PUT", "/v1/layouts/some"), ("DELETE", "/v1/conversions/some")} <= set(found)


CROSS = ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"})


@pytest.mark.parametrize("insecure", [False, True])
def test_no_route_changes_anything_for_another_site(
    serve: Callable[..., Served], insecure: bool
) -> None:
    served = serve(insecure=True, tokens=()) if insecure else serve()
    who = None if insecure else "ann"
    host = {"Host": "localhost"} if insecure else {}
    for method, path in changing_routes():
        for headers in CROSS:
            answer = served.ask(method, path, who, headers={**host, **headers})
            assert answer.status_code == 403, (method, path, headers, answer.text)
            assert "a change was expected from" in answer.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder: Path = tmp_path_factory.mktemp("origins")
    with live(folder, "--insecure", module="tests.server.idle") as found:
        yield found


def test_a_schedule_cannot_be_paused_from_another_site(server: Live) -> None:
    body = {"when": {"directory": "data/run"}, "targets": [{"target": "data/o/{step}"}]}
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        assert client.put("/v1/schedules/nightly", json=body).status_code == 201
        pause = "/v1/schedules/nightly:pause"
        for headers in CROSS:
            refused = client.post(pause, headers=headers)
            assert refused.status_code == 403
            assert refused.json()["type"] == "urn:reshard:problem:forbidden"
        assert client.get("/v1/schedules/nightly").json()["paused"] is False
        assert client.post(pause).json()["paused"] is True
        for headers in ({"Origin": server.url}, {"Sec-Fetch-Site": "same-origin"}):
            assert client.post("/v1/schedules/nightly:resume", headers=headers).status_code == 200


def test_the_body_is_not_read(server: Live) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/conversions HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: http://evil.example\r\n"
        "Content-Length: 900000\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(head.encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 403 ")
