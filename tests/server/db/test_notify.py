"""Notifications: a change of the records reaches this process and other replicas at once."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from reshard_server.db import connections as listening
from reshard_server.db import connections as news
from reshard_server.db.connections import Listener, News, Topic, news_of
from reshard_server.db.conversions import claims, conversions
from reshard_server.db.database import open_database
from reshard_server.schemas.conversion import OneTarget
from reshard_server.settings import Settings

from tests.server.live import live
from tests.server.postgres import Postgres
from tests.server.proxy import Proxy, proxied
from tests.server.waiting import until

WISH = OneTarget(source="data/a", target="data/b")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_database(Settings(state=tmp_path))
    yield engine
    engine.dispose()


@contextmanager
def replica(folder: Path, url: str) -> Iterator[sa.Engine]:
    """A replica's records, with a listener for notifications of others."""
    engine = open_database(Settings(state=folder, database_url=url))
    listener = Listener(engine)
    woken = heard(engine)
    listener.launch()
    try:
        # Who waits is woken once it listens; what is heard later is a change.
        until(lambda: news_of(engine).is_reliable and woken.is_set())
        yield engine
    finally:
        listener.close()
        engine.dispose()


def heard(db: sa.Engine, topic: Topic = "conversions") -> threading.Event:
    event = threading.Event()
    news_of(db).wake(topic, event.set)
    return event


def test_a_change_is_told_once_it_has_committed(sqlite: sa.Engine) -> None:
    seen: list[int] = []
    counted = sa.text("SELECT count(*) FROM conversions")

    def look() -> None:
        with sqlite.connect() as connection:
            seen.append(connection.execute(counted).scalar_one())

    news_of(sqlite).wake("conversions", look)
    conversions.create(sqlite, token="ann", request=WISH)
    assert seen == [1]
    claim = claims.claim_next(sqlite, "one", "text", 9)
    assert claim is not None and seen == [1]
    claims.finish(sqlite, claim, "failed")
    conversions.requeue(sqlite, claim.conversion)
    assert seen == [1, 1, 1]


def test_a_change_that_is_undone_is_not_told(sqlite: sa.Engine) -> None:
    event = heard(sqlite)

    def create_and_fail() -> None:
        with sqlite.begin() as connection:
            news.notify(connection, "conversions")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        create_and_fail()
    with sqlite.begin() as connection:
        connection.execute(sa.select(1))
    assert not event.is_set()


def test_a_replica_hears_of_another(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.new_database()
    with replica(tmp_path, url) as one, replica(tmp_path, url) as other:
        events = [heard(one), heard(other)]
        schedules = heard(other, "schedules")
        conversions.create(one, token="ann", request=WISH)
        assert all(event.wait(120) for event in events)
        assert not schedules.is_set()


def test_a_connection_that_is_cut_listens_again_and_misses_nothing(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.new_database()
    with replica(tmp_path, url) as one:
        event, found = heard(one), news_of(one)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid()"
            )
        assert event.wait(120)  # who waits is woken, and looks often from now on
        until(lambda: found.is_reliable)
        event.clear()
        conversions.create(one, token="ann", request=WISH)
        assert event.wait(120)


def test_a_connection_that_leads_nowhere_is_noticed(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(listening, "LONGEST_PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(listening, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(listening.BoundedConnection, "answer_seconds", 1.0)
    with (
        tempfile.TemporaryDirectory(prefix="p-") as sockets,  # short enough for a socket's name
        proxied(postgres.new_database(), Path(sockets)) as proxy,
        replica(tmp_path, proxy.url) as one,
    ):
        _is_noticed(one, proxy)


def _is_noticed(one: sa.Engine, proxy: Proxy) -> None:
    found = news_of(one)
    assert found.look_seconds == news.SELDOM_SECONDS
    proxy.black_hole()
    until(lambda: not found.is_reliable)
    assert found.look_seconds == news.LOOK_SECONDS
    proxy.mend()
    event = heard(one)
    until(lambda: found.is_reliable)
    assert event.wait(120)  # what was told meanwhile is looked for


def test_an_idle_replica_starts_what_another_recorded_at_once(
    tmp_path: Path, postgres: Postgres
) -> None:
    """The replica that gets the request runs no conversions; the other one polls once an hour."""
    url = postgres.new_database()
    with (
        live(tmp_path / "a", module="tests.server.idle", database_url=url) as asked,
        live(
            tmp_path / "b",
            database_url=url,
            waits={
                f"{listening.__name__}.SELDOM_SECONDS": 3600,
                f"{listening.__name__}.LOOK_SECONDS": 0.2,
            },
        ) as idle,
        asked.client() as client,
    ):
        time.sleep(1)  # until it looks seldom
        for number in range(3):
            wish = {"source": "data/none", "target": f"data/{number}"}
            found = client.post("/v1/conversions", json=wish).json()
            until(lambda path=f"/v1/conversions/{found['id']}": client.get(path).json()["done"])
        assert idle.end() == 0


def test_who_waits_for_one_topic_hears_no_other() -> None:
    found, told = News(), list[str]()
    found.wake("schedules", lambda: told.append("schedules"))
    found.spread(["conversions", "of another version"])
    assert told == []
    found.spread(["schedules"])
    assert told == ["schedules"]
