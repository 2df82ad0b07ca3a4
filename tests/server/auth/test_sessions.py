"""Sessions: begun with a token, kept as a hash, ended; and the cookie that stands for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from reshard_server.auth import sessions
from reshard_server.auth.sessions import Sessions, clear_cookie, cookie_of, is_secure, set_cookie
from reshard_server.auth.tokens import Tokens
from reshard_server.db.database import open_database
from reshard_server.db.tables import SESSIONS
from reshard_server.settings import Settings
from starlette.responses import Response

from tests.server.tokens import TOKENS, token_settings

ANN, BOB = TOKENS["ann"][0], TOKENS["bob"][0]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_database(Settings(state=tmp_path))
    yield engine
    engine.dispose()


def made(db: sa.Engine, clock: Clock | None = None, tokens: Tokens | None = None) -> Sessions:
    return Sessions(db, tokens or Tokens(token_settings()), 60.0, clock or Clock())


def begun(found: Sessions, token: str = ANN) -> str:
    session = found.begin(token)
    assert session is not None
    return session.cookie


def rows(db: sa.Engine) -> list[sa.Row[tuple[object, ...]]]:
    with db.connect() as connection:
        return list(connection.execute(sa.select(SESSIONS)))


def test_a_session_stands_for_its_token(db: sa.Engine) -> None:
    found = made(db)
    session = found.begin(ANN)
    assert session is not None
    assert (session.caller.name, session.seconds) == ("ann", 60.0)
    caller = made(db).caller(session.cookie)
    assert caller == session.caller
    assert caller is not None and caller.scopes == {"read", "convert"}


@pytest.mark.parametrize("insecure", [False, True])
def test_no_session_for_a_token_that_nobody_has(db: sa.Engine, insecure: bool) -> None:
    found = made(db, tokens=Tokens(token_settings(), insecure))
    for token in ("", "wrong", ANN + "x", "\ud800"):
        assert found.begin(token) is None
    for cookie in (None, "", "x", ANN, "\u2028"):
        assert found.caller(cookie) is None
    assert rows(db) == []


def test_only_a_hash_is_kept(db: sa.Engine) -> None:
    cookie = begun(made(db))
    assert len(cookie) == 43
    assert cookie not in str(rows(db)) and ANN not in str(rows(db))


def test_it_expires_and_is_forgotten(db: sa.Engine) -> None:
    clock = Clock()
    found = made(db, clock)
    cookie = begun(found)
    clock.now += 59.9
    assert found.caller(cookie) is not None
    clock.now += 0.1
    assert found.caller(cookie) is None
    begun(found, BOB)
    assert [row.token for row in rows(db)] == ["bob"]


def test_it_is_ended(db: sa.Engine) -> None:
    found = made(db)
    one, two, other = begun(found), begun(found), begun(found, BOB)
    found.end(one)
    found.end(None)
    assert [found.caller(c) is not None for c in (one, two, other)] == [False, True, True]
    assert found.end_of_hash(token_settings()[0].sha256) == 1
    assert [found.caller(c) is not None for c in (one, two, other)] == [False, False, True]


def test_it_ends_with_its_token(db: sa.Engine) -> None:
    cookie = begun(made(db))
    ann, *others = token_settings()
    assert made(db, tokens=Tokens(tuple(others))).caller(cookie) is None
    changed = ann.model_copy(update={"sha256": "0" * 64})
    assert made(db, tokens=Tokens((changed, *others))).caller(cookie) is None
    fewer = ann.model_copy(update={"scopes": frozenset({"read"})})
    caller = made(db, tokens=Tokens((fewer, *others))).caller(cookie)
    assert caller is not None and caller.scopes == {"read"}


def test_a_token_has_only_so_many(db: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_PER_TOKEN", 3)
    clock = Clock()
    found = made(db, clock)
    other = begun(found, BOB)
    cookies = []
    for _ in range(5):
        clock.now += 1
        cookies.append(begun(found))
    assert [found.caller(c) is not None for c in cookies] == [False, False, True, True, True]
    assert found.caller(other) is not None


def test_the_cookie_is_for_our_pages_only(db: sa.Engine) -> None:
    session = made(db).begin(ANN)
    assert session is not None
    for secure, name, words in (
        (False, "reshard_session", ""),
        (True, "__Host-reshard_session", "; Secure"),
    ):
        response = Response()
        set_cookie(response, session, secure=secure)
        cookie = response.headers["set-cookie"]
        assert cookie == (
            f"{name}={session.cookie}; HttpOnly; Max-Age=60; Path=/; SameSite=lax{words}"
        )
        clear_cookie(response, secure=secure)
        gone = response.headers.getlist("set-cookie")[1]
        assert gone.startswith(f'{name}=""') and "Max-Age=0" in gone and gone.endswith(words)


def test_over_https_no_other_cookie_is_looked_at() -> None:
    both = {"reshard_session": "planted", "__Host-reshard_session": "own"}
    assert cookie_of(both, secure=True) == "own"
    assert cookie_of({"reshard_session": "planted"}, secure=True) is None
    assert cookie_of(both, secure=False) == "planted"


@pytest.mark.parametrize(
    ("scheme", "public_url", "secure"),
    [
        ("http", None, False), ("https", None, True), ("http", "http://x", False), ("http", "https://x", True),
        ("https", "http://x", True),
    ],
)  # fmt: skip
def test_when_the_cookie_is_for_https(scheme: str, public_url: str | None, secure: bool) -> None:
    assert is_secure(scheme, public_url) is secure
