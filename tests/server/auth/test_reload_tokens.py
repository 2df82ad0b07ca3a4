"""Tokens that expire, and a tokens file that is read again when it changes."""

from __future__ import annotations

import hashlib
import logging
import os
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from reshard_server.auth.tokens import TokenReloader, Tokens, as_toml, load_tokens, make_token
from reshard_server.settings import Settings, TokenSettings

from reshard.errors import ReshardError
from tests.server.live import live
from tests.server.pages.browser import ORIGIN
from tests.server.served import Served
from tests.server.tokens import bearer
from tests.server.waiting import until

PATIENCE_SECONDS = 120


def entry(name: str, secret: str, **more: Any) -> str:
    known = {
        "name": name,
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "scopes": ["read", "convert"],
        "read": ["data"],
        "write": ["data"],
        **more,
    }
    return as_toml(TokenSettings.model_validate(known))


NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2027-01-31T12:00:00Z", NOON),
        ("2027-01-31T13:00:00+01:00", NOON),
        ("2027-01-31 12:00:00Z", NOON),
        ("2027-01-31", NOON - timedelta(hours=12)),
        ('"2027-01-31"', NOON - timedelta(hours=12)),
        ('"2027-01-31T12:00:00Z"', NOON),
    ],
)
def test_when_a_token_expires(tmp_path: Path, written: str, moment: datetime) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(entry("ci", "ci-secret") + f"expires = {written}\n")
    tokens = load_tokens(Settings(tokens_file=file))
    (known,) = tokens.settings
    assert known.expires == moment
    tokens.clock = lambda: moment.timestamp() - 1
    assert tokens.caller("ci-secret") is not None and tokens.named("ci") is not None
    assert tokens.expired("ci-secret") is None
    tokens.clock = moment.timestamp
    assert tokens.caller("ci-secret") is None and tokens.named("ci") is None
    assert tokens.with_hash(known.sha256) is None
    assert tokens.expired("ci-secret") == known
    assert tokens.expired("other") is None


@pytest.mark.parametrize(
    "written", ['"soon"', "2027-01-31T12:00:00", '"2027-01-31T12:00:00"', "3", "true", "12:00:00"]
)
def test_what_is_no_moment(tmp_path: Path, written: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(entry("ci", "ci-secret") + f"expires = {written}\n")
    with pytest.raises(ReshardError) as raised:
        load_tokens(Settings(tokens_file=file))
    assert (
        f"the tokens file {str(file)!r} cannot be used: tokens.0.expires: expected a day such as 2027-01-31, or a time "
        "with its zone such as 2027-01-31T12:00:00Z, found "
    ) in str(raised.value)


def test_a_secret_in_the_wrong_place_is_not_told(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text('[[tokens]]\nname = "a"\nsha256 = "rsh_in-the-clear"\nscopes = []\n')
    with pytest.raises(ReshardError) as raised:
        load_tokens(Settings(tokens_file=file))
    assert "tokens.0.sha256: expected text that matches" in str(raised.value)
    assert "in-the-clear" not in str(raised.value)


def test_tokens_are_made_with_an_end() -> None:
    for text, seconds in (("90d", 90 * 86400), ("0d", 0)):
        _, kept = make_token("ci", ["read"], [], [], text)
        assert kept.expires is not None
        assert abs(kept.expires.timestamp() - time.time() - seconds) < PATIENCE_SECONDS
    token, kept = make_token("ci", ["read"], [], [], "2027-01-31")
    assert as_toml(kept).endswith("\nexpires = 2027-01-31T00:00:00+00:00\n")
    assert tomllib.loads(as_toml(kept))["tokens"][0]["expires"] == NOON - timedelta(hours=12)
    assert "expires" not in as_toml(make_token("ci", ["read"], [], [])[1])
    with pytest.raises(ReshardError) as raised:
        make_token("ci", ["read"], [], [], "d")
    assert "the token 'ci' cannot be made: expires: expected a day such as" in str(raised.value)
    assert token not in str(kept)


def test_a_request_with_an_expired_token_is_told_so(served: Served) -> None:
    services = served.app.state.services
    ann = services.tokens.settings[0]
    cookie = services.sessions.begin("ann-secret-token").cookie
    shown = {"Cookie": f"reshard_session={cookie}"}
    assert served.ask("GET", "/v1/conversions", None, headers=shown).status_code == 200
    over = ann.model_copy(update={"expires": datetime(2020, 1, 1, tzinfo=UTC)})
    services.tokens.replace((over, *services.tokens.settings[1:]))
    answer = served.ask("GET", "/v1/conversions")
    assert answer.status_code == 401
    assert answer.json()["detail"] == (
        "the token 'ann' expired at 2020-01-01 00:00:00+00:00; ask its administrator for a new one"
    )
    assert answer.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    assert served.ask("GET", "/v1/conversions", "bob").status_code == 200
    assert served.ask("GET", "/v1/conversions", None, headers=shown).status_code == 401
    form = {"token": "ann-secret-token"}
    page = served.ask("POST", "/sign-in", None, data=form, headers={"Origin": ORIGIN})
    assert page.status_code == 401
    assert "This token has expired; ask the administrator for a new one." in page.text


def test_a_session_ends_with_its_token_at_the_latest(served: Served) -> None:
    services = served.app.state.services
    ann = services.tokens.settings[0]
    soon = ann.model_copy(update={"expires": datetime.now(UTC) + timedelta(seconds=600)})
    services.tokens.replace((soon, *services.tokens.settings[1:]))
    assert 500 < services.sessions.begin("ann-secret-token").seconds <= 600


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tokens.toml"
    found.write_text(entry("one", "one-secret") + entry("two", "two-secret"))
    return found


def reloading(file: Path, ended: list[str]) -> tuple[Tokens, TokenReloader]:
    settings, told = Settings(tokens_file=file), list[str]()
    tokens = load_tokens(settings)
    return tokens, TokenReloader(settings, tokens, ended.append, told.append)


def test_a_file_that_changed_is_taken(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ended: list[str] = []
    tokens, found = reloading(file, ended)
    gone = tokens.settings[0].sha256
    found.look()
    assert caplog.messages == []
    file.write_text(entry("two", "two-secret", scopes=["read"]) + entry("three", "three-secret"))
    found.look()
    assert tokens.named("one") is not None  # it may still be written
    found.look()
    assert [t.name for t in tokens.settings] == ["two", "three"]
    assert tokens.caller("one-secret") is None and tokens.caller("three-secret") is not None
    assert ended == [gone]
    assert caplog.messages == ["the tokens were read again: new: three; gone: one; changed: two"]
    found.look()
    assert len(caplog.messages) == 1


def test_another_file_in_its_place_is_taken(file: Path) -> None:
    """As an editor does, and Kubernetes, which turns a link: size and time may be the same."""
    ended: list[str] = []
    link = file.with_name("link")
    link.symlink_to(file)
    tokens, found = reloading(link, ended)
    stat = file.stat()
    other = file.with_name("other")
    other.write_text(entry("one", "one-secret") + entry("six", "six-secret"))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    link.unlink()
    link.symlink_to(other)
    assert other.stat().st_size == stat.st_size
    found.look()
    found.look()
    assert tokens.named("six") is not None and tokens.named("two") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("[[tokens]", "cannot be used"),
        ("", "there is no token, so nobody could send requests"),
        (entry("one", "x") + entry("one", "y"), "two tokens are named 'one'"),
        ('[[tokens]]\nname = "x"\n', "tokens.0.sha256: it is missing"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    file: Path, caplog: pytest.LogCaptureFixture, text: str | None, words: str
) -> None:
    ended: list[str] = []
    tokens, found = reloading(file, ended)
    file.unlink()
    if text is not None:
        file.write_text(text)
    for _ in range(4):
        found.look()
    assert tokens.caller("one-secret") is not None and tokens.caller("two-secret") is not None
    assert ended == []
    (message,) = caplog.messages
    assert message.startswith("the tokens are not changed: ") and words in message
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    file.write_text(entry("two", "two-secret"))
    found.look()
    found.look()
    assert tokens.caller("one-secret") is None and tokens.caller("two-secret") is not None


def test_a_running_server_takes_tokens_and_gives_them_up(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(entry("old", "old-secret"))
    old, new = ({"Authorization": f"Bearer {which}-secret"} for which in ("old", "new"))
    body = {"source": "data/a", "target": "data/b"}
    looks = {
        "reshard_server.auth.tokens.LOOK_SECONDS": 0.1,
        "reshard_server.api.conversions.SILENCE_SECONDS": 0.5,
    }
    with live(tmp_path, module="tests.server.idle", tokens_file=str(file), waits=looks) as server:
        url = f"{server.url}/v1/conversions"
        with httpx.Client(timeout=PATIENCE_SECONDS) as client:
            own = {"Origin": server.url}
            signed = client.post(f"{server.url}/sign-in", data={"token": "old-secret"}, headers=own)
            assert signed.status_code == 303
            made = client.post(url, json=body, headers=old).json()["id"]
            with client.stream("GET", f"{url}/{made}/events", headers=old) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("retry")
                file.write_text(entry("new", "new-secret"))
                until(lambda: _status(url, old) == 401)
                told = [line for line in lines if line.startswith("event:")]
                assert told == [
                    "event: conversion"
                ]  # it ends with its token, before the conversion
            assert client.get(url, headers=new).status_code == 200
            assert client.get(url).status_code == 401  # by the cookie
            assert _status(url, bearer("ann")) == 200  # of the settings
            file.write_text("broken")
            said = "the tokens are not changed"
            until(lambda: any(x["message"].startswith(said) for x in server.lines()))
            assert client.get(url, headers=new).status_code == 200
        text = server.log.read_text()
        assert "the tokens were read again: new: new; gone: old" in text
        assert "old-secret" not in text and "new-secret" not in text


def _status(url: str, headers: dict[str, str]) -> int:
    return httpx.get(url, headers=headers, timeout=PATIENCE_SECONDS).status_code
