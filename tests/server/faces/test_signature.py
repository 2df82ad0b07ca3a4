"""Signatures of the S3 face: those of botocore are taken, any other request is refused in XML, and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import botocore.auth
import httpx
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from reshard_server.auth.proxies import Proxies
from reshard_server.auth.tokens import Tokens, as_toml, make_token
from reshard_server.observability import logs
from reshard_server.observability.logs import JsonLines
from reshard_server.settings import TokenSettings
from reshard_server.worker.children import Children

from reshard.errors import ReshardError
from tests.server.faces.s3_served import NO_SECRET, SECRETS, Made, S3Served, serving_s3, tokens

CONFIG = "/s3/views/small/config.json"
REVISION = "0" * 40


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory, children: Children) -> Iterator[S3Served]:
    folder = tmp_path_factory.mktemp("s3")
    made = Made.of(folder, {"config.json": b"{}", "a b+c~ä.bin": b"odd"})
    with serving_s3(folder, children) as served:
        served.shelf.add("small", made, REVISION)
        yield served


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets botocore's clock some seconds ahead."""

    def ahead(seconds: float) -> None:
        def now(*_: object, **__: object) -> datetime:
            return datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=seconds)

        monkeypatch.setattr(botocore.auth, "get_current_datetime", now)

    return ahead


def refused(s3: S3Served, **headers: str) -> tuple[int, str]:
    found = s3.ask(CONFIG, headers)
    return found.status, found.code


def presigned(s3: S3Served, target: str = CONFIG, seconds: int = 60, name: str = "ann") -> str:
    request = AWSRequest("GET", s3.url + target)
    S3SigV4QueryAuth(Credentials(name, SECRETS[name]), "s3", "x", seconds).add_auth(request)
    parts = urlsplit(str(request.url))
    return f"{parts.path}?{parts.query}"


TARGETS = [
    "/s3", "/s3/", "/s3/views", "/s3/views/", "/s3/views?location", "/s3/views?location=", "/s3/views?list-type=2&prefix=&delimiter=%2F",
    "/s3/views?prefix=b%20c%2Bd~%C3%A4&list-type=2", "/s3/views?max-keys=1&Z-a=1".replace("&Z-a=1", "&x-Z=1&X-A=2"), CONFIG,
    "/s3/views/small/a%20b%2Bc~%C3%A4.bin", "/s3/views/small/a%20b%2bc%7E%C3%A4.bin", "/s3/views/small/a%20b+c~%C3%A4.bin",
    "/s3/views%2Fsmall/config.json", "/s3/views/small/%63onfig.json",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_botocore_signs_is_taken(s3: S3Served, target: str, method: str) -> None:
    assert s3.get(target, method).status == 200
    wrong = s3.signed(target, method, secret="another secret than ann has")
    assert s3.ask(target, wrong, method).status == 403


@given(st.text(min_size=1, max_size=20), st.text(max_size=9))
def test_any_key_and_prefix_can_be_signed(s3: S3Served, key: str, prefix: str) -> None:
    """A key that is not there is found to be not there, which only a right signature learns."""
    keys = quote(f"small/x{key}".encode("utf-8", "replace"), safe="/~")
    found = s3.get(f"/s3/views/{keys}")
    assert found.status == 404 or b"NUL" in found.body
    query = quote(prefix.encode("utf-8", "replace"), safe="~")
    assert s3.get(f"/s3/views?list-type=2&prefix={query}").status in (200, 400)


def test_headers_are_folded_and_joined_as_botocore_does(s3: S3Served) -> None:
    headers = {"x-amz-meta-a": "  two   words ", "X-Custom": "1,2", "x-empty": ""}
    assert s3.get(CONFIG, **headers).status == 200
    signed = s3.signed(CONFIG, **headers)
    assert s3.ask(CONFIG, {**signed, "x-amz-meta-a": "two words"}).status == 200
    apart = [(name, value) for name, value in signed.items() if name != "X-Custom"]
    assert s3.ask(CONFIG, [*apart, ("x-custom", "1"), ("x-custom", "2")]).status == 200
    assert s3.ask(CONFIG, {**signed, "x-amz-meta-a": "other words"}).code == "SignatureDoesNotMatch"


def test_a_body_that_is_not_signed_is_taken_and_any_other_refused(s3: S3Served) -> None:
    for payload, status in (("UNSIGNED-PAYLOAD", 200), ("0" * 64, 400), ("STREAMING-X", 400)):
        request = AWSRequest("GET", s3.url + CONFIG)
        signer = S3SigV4Auth(Credentials("ann", SECRETS["ann"]), "s3", "x")
        signer.payload = lambda _, payload=payload: payload
        signer.add_auth(request)
        assert s3.ask(CONFIG, dict(request.headers.items())).status == status, payload


@pytest.mark.parametrize("seconds", [-14 * 60, 14 * 60])
def test_clocks_may_differ_a_little(s3: S3Served, clock: Any, seconds: int) -> None:
    clock(seconds)
    assert s3.get(CONFIG).status == 200


@pytest.mark.parametrize("seconds", [-16 * 60, 16 * 60, -400 * 86400, 400 * 86400])
def test_clocks_that_differ_more_are_told(s3: S3Served, clock: Any, seconds: int) -> None:
    clock(seconds)
    found = s3.get(CONFIG)
    assert (found.status, found.code) == (403, "RequestTimeTooSkewed")
    assert found.message.endswith("sign it anew, or set the client's clock")


def test_presigned_urls_end(s3: S3Served, clock: Any) -> None:
    for ahead, seconds, code in (
        (-3600, 3700, None), (-3600, 3500, "AccessDenied"), (16 * 60, 60, "RequestTimeTooSkewed"), (14 * 60, 60, None),
    ):  # fmt: skip
        clock(ahead)
        found = s3.ask(presigned(s3, seconds=seconds))
        assert (found.code if found.status != 200 else None) == code, (ahead, seconds)


def test_each_wrong_key_has_its_code(s3: S3Served) -> None:
    wrong = s3.signed(CONFIG, secret="not the secret of ann")
    assert refused(s3, **wrong) == (403, "SignatureDoesNotMatch")
    assert (
        "check the secret, and that no proxy changes the path or the host"
        in s3.ask(CONFIG, wrong).message
    )
    for name in ("nobody", NO_SECRET, "late", "Ann"):
        signed = s3.signed(CONFIG, name=name, secret=SECRETS["late"])
        assert refused(s3, **signed) == (403, "InvalidAccessKeyId")
    found = s3.ask(CONFIG, s3.signed(CONFIG, name="deaf"))
    assert (found.status, found.code) == (403, "AccessDenied")
    assert found.message == "the token 'deaf' lacks the scope 'read'; ask for one that has it"
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        s3.client("nobody").list_buckets()


def test_a_request_without_one_signature_is_denied(s3: S3Served) -> None:
    signed = s3.signed(CONFIG)
    none, url = s3.ask(CONFIG), presigned(s3)
    assert (none.status, none.code) == (403, "AccessDenied")
    assert none.message == (
        "one signature was expected, in the header Authorization or in the URL, found 0; set a key, and signature version 4"
    )
    twice = [*signed.items(), ("Authorization", signed["Authorization"])]
    assert s3.ask(CONFIG, twice).message.startswith("one signature was expected")
    assert "found 2" in s3.ask(url, signed).message
    assert s3.ask(CONFIG, [*signed.items(), ("Authorization", "Bearer x")]).code == "AccessDenied"
    assert s3.ask(f"{url}&X-Amz-Expires=3600").code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA512"), ("AWS4-HMAC-SHA256", "Bearer"), ("AWS4-HMAC-SHA256 ", ""), ("/s3/", "/sts/"),
        ("aws4_request", "aws5_request"), ("Credential=ann/", "Credential=/"), ("Credential=ann/", "Credential=ann"),
        ("Credential=ann/", "Credential=a/nn/"), ("Credential=ann/", "Credential=ann/20200101/"), ("eu-anywhere-7", ""),
        ("SignedHeaders=host;", "SignedHeaders="), ("SignedHeaders=", "SignedHeaders=;;;hosts;"), ("Signature=", "Signature=0"),
        ("Signature=", "Signature=\xe4"), ("Signature=", "Signatur="), ("Credential=ann/", "Credential=ann/٢٠٢٠٠١٠١/"),
    ],
)  # fmt: skip
def test_a_header_of_another_form_is_told_which_one_is_meant(
    s3: S3Served, part: str, other: str
) -> None:
    signed = s3.signed(CONFIG)
    assert part in signed["Authorization"]
    changed = signed["Authorization"].replace(part, other, 1).encode()
    found = s3.ask(CONFIG, {**signed, "Authorization": changed})  # type: ignore[dict-item]
    assert found.status in (400, 403)
    assert found.code in ("InvalidRequest", "SignatureDoesNotMatch")
    if found.status == 400:
        assert found.message.startswith(
            "expected AWS4-HMAC-SHA256, KEY/DAY/REGION/s3/aws4_request, a time of that day"
        )


@pytest.mark.parametrize(
    "date", ["", "yesterday", "20261399T999999Z", "20260101T000000", "2026-01-01T00:00:00Z", "9" * 4000, "٢٠٢٦٠١٠١T000000Z"]
)  # fmt: skip
def test_a_date_of_another_form_is_refused(s3: S3Served, date: str) -> None:
    signed = {**s3.signed(CONFIG), "X-Amz-Date": date.encode()}  # type: ignore[dict-item]
    assert s3.ask(CONFIG, signed).code == "InvalidRequest"
    for seconds in ("0", "-1", "1e3", "604801", "9" * 99, "", "٦٠"):
        url = presigned(s3).replace("X-Amz-Expires=60", f"X-Amz-Expires={quote(seconds)}")
        assert s3.ask(url).code in ("InvalidRequest", "AccessDenied", "SignatureDoesNotMatch")


@pytest.mark.parametrize(
    "target",
    [
        "/s3/views/../v1/conversions", "/s3/views/%2e%2e/small/config.json", "/s3/../s3/views", "/s3/./views/small/config.json",
        "/s3/views/small/config.json%00", "/s3/views?prefix=%00", "/s3/views/small/%ff%fe", "/s3/views?prefix=%ff", "/s3/views?&&&=&==",
        "/s3/views?" + "a=1&" * 900, "/s3//views", "/s3/views/%0d%0aX-Evil:1", "/s3/views?max-keys=-1", "/s3/views?max-keys=x&list-type=2",
        "/s3/views?acl", "/s3/other", "/s3/views?list-type=2&max-keys=99999999999999999999",
    ],
)  # fmt: skip
def test_hostile_targets_get_an_error_in_xml(s3: S3Served, target: str) -> None:
    for answer in (s3.get(target), s3.ask(target)):
        assert 400 <= answer.status < 502 and answer.status != 500, (target, answer)
        assert answer.code
        assert "x-evil" not in {name.lower() for name in answer.headers}


def test_refusals_of_the_middlewares_are_xml_too(
    s3: S3Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = s3.ask(CONFIG, {"x-large": "x" * 17_000})
    assert (large.status, large.code) == (431, "HeadersTooLarge")
    html = s3.ask(CONFIG, {"Accept": "text/html"})
    assert html.code == "AccessDenied"
    other = s3.ask("/s3/views", {"Origin": "http://evil.example"}, "POST")
    assert (other.status, other.code) == (403, "AccessDenied")
    waits = s3.ask(CONFIG, {"Expect": "100-continue", "Content-Length": "9"}, "PUT")
    assert (waits.status, waits.code) == (405, "MethodNotAllowed")
    monkeypatch.setattr(s3.shelf, "views", None)
    broken = s3.get(CONFIG)
    assert (broken.status, broken.code) == (500, "InternalError")
    assert broken.headers["x-amz-request-id"] in broken.message


def test_the_path_and_the_host_are_those_that_the_client_signed(
    s3: S3Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = s3.signed(CONFIG)
    # Clients with a proxy, and AWS's CRT, send the target in absolute form.
    assert s3.ask(s3.url + CONFIG, signed).status == 200
    assert s3.ask(f"http://other.example{CONFIG}", signed).code == "SignatureDoesNotMatch"
    assert s3.ask(CONFIG, {**signed, "Host": "inner:8080"}).code == "SignatureDoesNotMatch"
    # A proxy that took a prefix away.
    assert s3.ask(CONFIG, s3.signed(f"/models{CONFIG}")).code == "SignatureDoesNotMatch"
    forwarded = {**signed, "Host": "inner:8080", "X-Forwarded-Host": urlsplit(s3.url).netloc}
    assert s3.ask(CONFIG, forwarded).code == "SignatureDoesNotMatch"
    monkeypatch.setattr(Proxies, "trusts", lambda *_: True)
    assert s3.ask(CONFIG, forwarded).status == 200


def test_wrong_signatures_have_a_rate(s3: S3Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = s3.app.state.services.rates
    wrong = s3.signed(CONFIG, secret="not the secret of ann")
    assert s3.ask(CONFIG, wrong).code == "SignatureDoesNotMatch"
    monkeypatch.setattr(rates, "per_minute", 2)
    rates._left.clear()
    codes = [s3.ask(CONFIG, wrong).code for _ in range(3)]
    assert codes == ["SignatureDoesNotMatch", "SignatureDoesNotMatch", "SlowDown"]
    # A client reads a large file in many requests, so that those of known callers are not counted.
    assert [s3.get(CONFIG).status for _ in range(3)] == [200, 200, 200]
    rates._left.clear()


def test_the_log_names_callers_and_refusals_and_no_secret(s3: S3Served, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    s3.get(CONFIG)
    s3.ask(CONFIG, s3.signed(CONFIG, secret="not the secret of ann"))
    s3.ask(CONFIG, s3.signed(CONFIG, name="deaf"))
    s3.ask(presigned(s3).replace("config", "konfig"))
    own = [record for record in caplog.records if record.name.startswith("reshard")]
    audited = [record for record in own if record.name == logs.NAME]
    assert [record.getMessage() for record in audited] == ["refused", "refused"]
    lines = "".join(map(JsonLines().format, own))
    assert not any(secret in lines for secret in SECRETS.values())
    assert "/s3/views/small/konfig.json" in lines and "X-Amz-" not in lines


def test_a_server_without_tokens_takes_any_signature_or_none(
    tmp_path: Path, children: Children
) -> None:
    with serving_s3(tmp_path, children, tokens=(), insecure=True) as s3:
        s3.shelf.add("small", Made.of(tmp_path, {"config.json": b"{}"}), REVISION)
        assert s3.ask(CONFIG).body == b"{}"
        assert s3.ask(CONFIG, s3.signed(CONFIG, name="anybody", secret="x")).body == b"{}"
        got = s3.client("any", "thing").get_object(Bucket="views", Key="small/config.json")
        assert got["Body"].read() == b"{}"
        elsewhere = s3.ask(CONFIG, {"Host": "evil.example"})
        assert (elsewhere.status, elsewhere.code) == (421, "MisdirectedRequest")


def test_secrets_stand_in_entries_and_nowhere_else() -> None:
    _, kept = make_token("ci.1", ["read"], ["data"], [], "90d", s3=True)
    assert kept.s3_secret and kept.s3_secret.startswith("rsh_") and len(kept.s3_secret) > 40
    assert kept.s3_secret not in f"{kept!r} {kept!s}"
    assert f'\ns3_secret = "{kept.s3_secret}"\n' in as_toml(kept)
    assert "s3_secret" not in as_toml(make_token("ci 1", ["read"], [], [])[1])
    for name in ("a/b", "a b", "a,b", "ä", "a;b", "a=b"):
        with pytest.raises(ReshardError, match="expected a name of letters, digits and"):
            make_token(name, ["read"], [], [], s3=True)
    with pytest.raises(ValueError, match="at least 16 characters") as raised:
        TokenSettings.model_validate(
            {"name": "a", "sha256": "0" * 64, "scopes": [], "s3_secret": "short"}
        )
    assert "s3_secret" in str(raised.value)


def test_keys_are_those_of_the_present_tokens() -> None:
    known = Tokens(tokens())
    secret, caller = known.s3_key("ann") or ("", None)
    assert secret == SECRETS["ann"] and caller == known.named("ann")
    assert [known.s3_key(name) for name in ("late", NO_SECRET, "nobody", "")] == [None] * 4
    known.replace(tokens()[1:])
    assert known.s3_key("ann") is None


def test_the_url_of_a_removed_token_ends(s3: S3Served) -> None:
    url = presigned(s3)
    assert httpx.get(s3.url + url).status_code == 200
    known = s3.app.state.services.tokens
    before = known.settings
    known.replace(before[1:])
    assert "InvalidAccessKeyId" in httpx.get(s3.url + url).text
    known.replace(before)
