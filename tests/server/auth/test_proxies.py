"""Proxies: only proxies that the settings name are trusted, and only for the headers that they themselves set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from reshard_server.auth.proxies import Proxies, bucket_of
from reshard_server.auth.tokens import load_tokens
from reshard_server.settings import Settings, load_settings

from reshard.errors import ReshardError
from tests.server.live import PATIENCE_SECONDS, live
from tests.server.served import Served

Told = tuple[str, str, str]


def told(trusted: str | None, peer: str, headers: dict[str, str | list[str]]) -> Told:
    """Client, scheme and host of a request to ``here`` by plain HTTP."""
    values = [(n, [v] if isinstance(v, str) else v) for n, v in headers.items()]
    raw = [(b"host", b"here"), *((n.lower().encode(), v.encode("latin-1")) for n, vs in values for v in vs)]  # fmt: skip
    scope: dict[str, Any] = {"type": "http", "client": (peer, 5), "scheme": "http", "headers": raw}
    found = Proxies.of(trusted).seen_by(scope)
    (host,) = [value.decode() for name, value in found["headers"] if name == b"host"]
    return found["client"][0], found["scheme"], host


FOR = "X-Forwarded-For"
ALL: dict[str, str | list[str]] = {FOR: "1.2.3.4", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "there:1"}  # fmt: skip


@pytest.mark.parametrize(
    ("trusted", "peer", "headers", "expected"),
    [
        (None, "127.0.0.1", ALL, ("127.0.0.1", "http", "here")),
        ("", "127.0.0.1", ALL, ("127.0.0.1", "http", "here")),
        ("127.0.0.1", "10.1.2.3", ALL, ("10.1.2.3", "http", "here")),
        ("127.0.0.1", "127.0.0.1", ALL, ("1.2.3.4", "https", "there:1")),
        ("10.0.0.0/8, ::1", "::1", ALL, ("1.2.3.4", "https", "there:1")),
        ("10.0.0.0/8", "::ffff:10.1.2.3", ALL, ("1.2.3.4", "https", "there:1")),
        ("127.0.0.1", "127.0.0.1", {}, ("127.0.0.1", "http", "here")),
        # what stands before the last proxy's entry is somebody's word
        ("127.0.0.1", "127.0.0.1", {FOR: "6.6.6.6, 1.2.3.4"}, ("1.2.3.4", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {FOR: ["6.6.6.6", "1.2.3.4"]}, ("1.2.3.4", "http", "here")),
        ("127.0.0.1,10.0.0.0/8", "127.0.0.1", {FOR: "6.6.6.6, 1.2.3.4, 10.0.0.9"}, ("1.2.3.4", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {FOR: "6.6.6.6, 1.2.3.4, 10.0.0.9"}, ("10.0.0.9", "http", "here")),
        ("10.0.0.0/8", "10.0.0.1", {FOR: "10.0.0.3, 10.0.0.2"}, ("10.0.0.3", "http", "here")),
        # what is no address
        ("127.0.0.1", "127.0.0.1", {FOR: "unknown"}, ("127.0.0.1", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {FOR: "1.2.3.4, \n forged"}, ("127.0.0.1", "http", "here")),
        ("10.0.0.0/8", "10.0.0.1", {FOR: "x, 10.0.0.2"}, ("10.0.0.2", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {FOR: ""}, ("127.0.0.1", "http", "here")),
        # with ports, and as IPv6
        ("127.0.0.1", "127.0.0.1", {FOR: "1.2.3.4:567"}, ("1.2.3.4", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {FOR: "[2001:db8::1]:567"}, ("2001:db8::1", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {FOR: "2001:db8::1"}, ("2001:db8::1", "http", "here")),
        # whoever connects, but only for the last entry
        ("*", "9.9.9.9", {**ALL, FOR: "6.6.6.6, 1.2.3.4"}, ("1.2.3.4", "https", "there:1")),
        # the last of several, and nothing odd
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-Proto": "https, http"}, ("127.0.0.1", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-Proto": "HTTPS"}, ("127.0.0.1", "https", "here")),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-Proto": "gopher"}, ("127.0.0.1", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-Host": "evil, there"}, ("127.0.0.1", "http", "there")),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-Host": "a b"}, ("127.0.0.1", "http", "here")),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-Host": "x@there"}, ("127.0.0.1", "http", "here")),
    ],
)  # fmt: skip
def test_what_is_believed(
    trusted: str | None, peer: str, headers: dict[str, str | list[str]], expected: Told
) -> None:
    assert told(trusted, peer, headers) == expected


def test_without_a_peer_nobody_is_believed() -> None:
    scope = {"type": "http", "client": None, "headers": [(b"x-forwarded-for", b"1.2.3.4")]}
    assert Proxies.of("*").seen_by(scope)["client"] is None


def test_an_ipv6_network_counts_as_one() -> None:
    assert bucket_of("2001:db8::1") == bucket_of("2001:db8::ffff:1") == "address 2001:db8::/64"
    assert bucket_of("2001:db8:0:1::1") != bucket_of("2001:db8::1")
    assert bucket_of("1.2.3.4") == bucket_of("::ffff:1.2.3.4") == "address 1.2.3.4"
    assert bucket_of("") == "address "


def test_a_setting_that_cannot_be_used() -> None:
    for text, found in (("localhost", "localhost"), ("10.0.0.1/8", "10.0.0.1/8"), ("::1,x", "x")):
        with pytest.raises(ReshardError) as raised:
            load_settings({"forwarded_allow_ips": text}, None)
        assert str(raised.value).startswith(
            "the settings cannot be used: forwarded_allow_ips: expected addresses or networks such as 10.0.0.0/8 between "
            f"commas, found '{found}'"
        )
    with pytest.raises(ReshardError) as raised:
        load_tokens(Settings(insecure=True, forwarded_allow_ips="*"))
    assert "forwarded_allow_ips names a proxy, which lets others in; make tokens" in str(
        raised.value
    )


def statuses(url: str, number: int, address: str) -> list[int]:
    headers = {FOR: address, "Authorization": "Bearer wrong"}
    return [
        httpx.get(url, headers=headers, timeout=PATIENCE_SECONDS).status_code for _ in range(number)
    ]


def test_callers_behind_a_proxy_have_rates_of_their_own(tmp_path: Path) -> None:
    settings = {"requests_per_minute": 3, "forwarded_allow_ips": "127.0.0.1"}
    with live(tmp_path, module="tests.server.idle", **settings) as server:
        url = f"{server.url}/v1/conversions"
        assert statuses(url, 4, "6.6.6.6, 1.2.3.4") == [401, 401, 401, 429]
        assert statuses(url, 4, "1.2.3.4, 6.6.6.6") == [401, 401, 401, 429]


def test_without_the_setting_they_share_the_proxys(tmp_path: Path) -> None:
    with live(tmp_path, module="tests.server.idle", requests_per_minute=3) as server:
        url = f"{server.url}/v1/conversions"
        assert statuses(url, 2, "1.2.3.4") + statuses(url, 2, "6.6.6.6") == [401, 401, 401, 429]


@pytest.mark.parametrize(
    ("trusted", "origin", "scheme", "status"),
    [
        ("127.0.0.1", "https://reshard.example", "https", 404),
        ("127.0.0.1", "https://reshard.example", "http", 404),
        ("127.0.0.1", "http://reshard.example", "https", 403),
        ("127.0.0.1", "https://test", "https", 403),
        (None, "https://reshard.example", "https", 403),
        (None, "https://test", "https", 404),
    ],
)
def test_origins_are_those_that_the_proxy_was_asked_for(
    serve: Callable[..., Served], trusted: str | None, origin: str, scheme: str, status: int
) -> None:
    """The client of these tests asks for ``test``, from 127.0.0.1."""
    told = {"Origin": origin, "X-Forwarded-Host": "reshard.example", "X-Forwarded-Proto": scheme}
    served = serve(forwarded_allow_ips=trusted)
    answer = served.ask("POST", "/v1/conversions/none:cancel", headers=told)
    assert answer.status_code == status, answer.text
