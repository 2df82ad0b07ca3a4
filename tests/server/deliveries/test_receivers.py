"""Receivers that may not be notified: refused as they are named, and again as they are connected to."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpcore
import pytest
from reshard_server.deliveries import post as posting
from reshard_server.deliveries.post import post
from reshard_server.deliveries.receivers import Receiver, is_public, receiver_of
from reshard_server.errors.problems import ProblemError
from reshard_server.settings import Settings, load_settings

from reshard.errors import ReshardError
from tests.server.deliveries.receiver import receiving, secrets_file
from tests.server.served import Served

NOT_PUBLIC = (
    "0.0.0.1", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254",
    "172.16.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::8.8.8.8",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254",
    "fe80::1", "fec0::1", "ff02::1",
)  # fmt: skip
PUBLIC = ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e")


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


SUBMITTED = [
    ("ftp://a.example", "is 'ftp://a.example', whose scheme is not https; begin it with https://"),
    ("http://a.example", "is 'http://a.example', which is not encrypted; begin it with https://"),
    ("https://ann:S3CRET@a.example", "has a user or a password; let the receiver check the signature"),
    ("https://a.example/x#y", "is 'https://a.example/x#y', with a fragment, which is never sent; leave out what begins with #"),
    ("https://a.example/#", "is 'https://a.example/#', with a fragment, which is never sent; leave out what begins with #"),
    ("https://a.example/ü", "has a character that no URL may have; write it in ASCII, and escape others as %XX"),
    ("https://a.example\\@b.example", "has a character that no URL may have; write it in ASCII, and escape others as %XX"),
    (" https://a.example", "has a character that no URL may have; write it in ASCII, and escape others as %XX"),
    ("https:///x", "is 'https:///x', which names no host and port; write it such as https://hooks.example/path"),
    ("https://a.example:0", "is 'https://a.example:0', which names no host and port; write it such as https://hooks.example/path"),
    ("https://a.example:99999", "is not a URL; write it such as https://hooks.example/path"),
    ("https://[::1", "is not a URL; write it such as https://hooks.example/path"),
    ("https://a..example", "is 'https://a..example', which names no host and port; write it such as https://hooks.example/path"),
    ("//a.example", "is '//a.example', whose scheme is not https; begin it with https://"),
    *(
        (f"https://{host}/x", f"has the address {address} that is not public; choose a public host, or let the administrator add the network "
         "to notify_private")
        for host, address in [
            ("169.254.169.254", "169.254.169.254"), ("localhost", "127.0.0.1"), ("a.localhost", "127.0.0.1"), ("127.1", "127.0.0.1"),
            ("2130706433", "127.0.0.1"), ("0x7f000001", "127.0.0.1"), ("0177.0.0.1", "127.0.0.1"), ("[::1]", "::1"),
            ("[::ffff:10.0.0.1]", "::ffff:a00:1"), ("[64:ff9b::a00:1]", "64:ff9b::a00:1"), ("[fe80::1]", "fe80::1"),
        ]
    ),
]  # fmt: skip


def test_urls_that_may_not_be_named(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(notify_secrets_file=secrets_file(tmp_path))
    for url, detail in SUBMITTED:
        body = {"source": "data/a", "target": "data/b", "notify": ["https://a.example", url]}
        refused = served.ask("POST", "/v1/conversions", json=body)
        problem = refused.json()
        assert (refused.status_code, problem["field"]) == (422, "/notify/1"), url
        assert problem["detail"] == f"the URL to notify {detail}"
        assert "S3CRET" not in refused.text
    assert served.ask("GET", "/v1/conversions").json()["conversions"] == []


def test_deltas_and_schedules_are_checked_alike(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(notify_secrets_file=secrets_file(tmp_path))
    urls = {"notify": ["https://10.0.0.1"]}
    delta = {"old": "data/a", "new": "data/b", "target": "data/w/weight_v000007", **urls}
    targets = [{"target": "data/out/{step}"}]
    schedule = {"when": {"directory": "data/run"}, "targets": targets, **urls}
    clock = {"cron": "0 3 * * *", "source": "data/run"}
    by_clock = {"when": clock, "targets": [{"target": "data/out/{time}"}], **urls}
    for answer in (
        served.ask("POST", "/v1/deltas", json=delta),
        served.ask("PUT", "/v1/schedules/s", json=schedule),
        served.ask("PUT", "/v1/schedules/s", json=by_clock),
    ):
        assert (answer.status_code, answer.json()["field"]) == (422, "/notify/0"), answer.text


def test_what_is_too_long_or_too_many(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(notify_secrets_file=secrets_file(tmp_path))
    long, many = [f"https://a.example/{'x' * 2048}"], ["https://a.example"] * 9
    for urls, field, words in (
        (long, "/notify/0", "expected at most 2048 characters"),
        (many, "/notify", "expected at most 8 of them, found 9"),
        ("https://a.example", "/notify", "expected a list"),
        ([""], "/notify/0", "expected at least 1 characters"),
        ([7], "/notify/0", "expected text"),
    ):
        body = {"source": "data/a", "target": "data/b", "notify": urls}
        answer = served.ask("POST", "/v1/conversions", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert words in answer.json()["detail"]


def test_a_server_without_a_secret_refuses(served: Served) -> None:
    body = {"source": "data/a", "target": "data/b", "notify": ["https://a.example"]}
    answer = served.ask("POST", "/v1/conversions", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "/notify")
    assert answer.json()["detail"] == (
        "this server sends no notifications, since it has no secret to sign them; leave notify out, or let the administrator set "
        "notify_secrets_file"
    )
    made = served.create()
    again = served.ask("POST", f"/v1/conversions/{made}/deliveries/x:resend")
    assert (again.status_code, again.json()["field"]) == (422, "delivery")


def test_hosts_that_are_allowed() -> None:
    some = Settings(notify_hosts=("hooks.example", "*.Corp.example"))
    for host in ("hooks.example", "HOOKS.example", "a.b.corp.example"):
        receiver_of(some, f"https://{host}/x")
    for host in ("corp.example", "hooks.example.evil.example", "hooks.example.", "1.1.1.1"):
        with pytest.raises(ProblemError) as refused:
            receiver_of(some, f"https://{host}/x")
        assert refused.value.detail == (
            f"the URL to notify is 'https://{host}/x', whose host is not among those that this server may notify; choose another, or let "
            "the administrator add it to notify_hosts"
        )


def test_networks_that_are_allowed() -> None:
    inner = Settings(notify_private=("10.0.0.0/8", "fd00::/8"))
    found = receiver_of(inner, "http://10.1.2.3:8080/x?y=1")
    assert found == Receiver("http", "10.1.2.3", 8080, "/x?y=1")
    assert receiver_of(inner, "https://[fd00::1]").port == 443
    for url, said in (
        ("https://192.168.0.1", "192.168.0.1 that is not public"),
        ("http://1.1.1.1", "1.1.1.1 to which http may not go, only https"),
    ):
        with pytest.raises(ProblemError) as refused:
            receiver_of(inner, url, "/notify/0")
        assert refused.value.detail.startswith(f"the URL to notify has the address {said}; ")
    with pytest.raises(ReshardError) as wrong:
        load_settings({"notify_private": ["10.0.0.1/8"]}, None)
    assert "notify_private.0: expected a network such as 10.0.0.0/8, found '10.0.0.1/8'" in str(
        wrong.value
    )


def posted(settings: Settings, receiver: Receiver, trust: ssl.SSLContext | None = None) -> Any:
    return anyio.run(post, settings, receiver, {}, b"{}", trust or ssl.create_default_context())


LOOPBACK = Settings(notify_private=("127.0.0.0/8",))


class Resolver:
    """A resolver that gives another answer each time, and counts."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, _: str, port: int, **__: object) -> list[Any]:
        self.asked += 1
        found = self.answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> Resolver:
    made = Resolver(*answers)
    monkeypatch.setattr(posting.socket, "getaddrinfo", made)
    return made


def test_a_name_is_looked_up_once_and_the_address_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        port = int(receiver.url.rpartition(":")[2])
        found = resolving(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        named = Receiver("http", "rebound.example", port, "/ok")
        assert posted(LOOPBACK, named).status == 204
        assert found.asked == 1
        assert receiver.arrived[0].headers["host"] == f"rebound.example:{port}"
        with pytest.raises(ProblemError, match="an address to which http may not go"):
            posted(LOOPBACK, named)
    assert len(receiver.arrived) == 1


def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["1.1.1.1", "10.0.0.1"])
    connected: list[str] = []
    monkeypatch.setattr(
        httpcore.AnyIOBackend, "connect_tcp", lambda *given, **_: connected.append(given[1])
    )
    with pytest.raises(ProblemError) as refused:
        posted(Settings(), Receiver("https", "a.example", 443, "/"))
    assert refused.value.detail == (
        "the URL to notify has an address that is not public; choose a public host, or let the administrator add the network to "
        "notify_private"
    )
    assert connected == []


def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        resolving(monkeypatch, ["127.0.0.3", "127.0.0.1"])
        port = int(receiver.url.rpartition(":")[2])
        assert posted(LOOPBACK, Receiver("http", "a.example", port, "/ok")).error is None


def test_an_address_of_ipv6() -> None:
    inner = Settings(notify_private=("::1/128",))
    with receiving(host="::1") as receiver:
        assert posted(inner, receiver_of(inner, f"{receiver.url}/ok")).status == 204
        assert f"http://{receiver.arrived[0].headers['host']}" == receiver.url


def test_a_name_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(posting.socket, "getaddrinfo", fail)
    tried = posted(Settings(), Receiver("https", "a.example", 443, "/"))
    assert tried.error.startswith("a.example could not be reached: the name is not known: ")


def test_a_resolver_that_hangs_ends_with_the_try(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setattr(posting, "TRY_SECONDS", 0.3)
        monkeypatch.setattr(
            posting.socket, "getaddrinfo", lambda *_, **__: receiver.released.wait(30) and []
        )
        tried = posted(Settings(), Receiver("https", "a.example", 443, "/"))
    assert tried.error == "a.example did not answer within 0.3 s"


def test_tls_is_verified_by_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=a.example", "-addext",
         "subjectAltName=DNS:a.example", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with receiving(tls=tls) as receiver:
        port = int(receiver.url.rpartition(":")[2])

        def said(name: str, trust: ssl.SSLContext | None) -> tuple[int | None, str]:
            resolving(monkeypatch, ["127.0.0.1"])
            tried = posted(LOOPBACK, Receiver("https", name, port, "/ok"), trust)
            return tried.status, tried.error or ""

        assert said("a.example", trusting) == (204, "")
        for name, trust in (("a.example", None), ("b.example", trusting)):
            status, error = said(name, trust)
            assert status is None and "certificate verify failed" in error
    assert len(receiver.arrived) == 1
