"""A replica that loses its database ends its conversions before another replica continues them."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from reshard_server.db import connections, database
from reshard_server.db.conversions import claims, conversions
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.database import open_database
from reshard_server.host_clock import host_seconds
from reshard_server.jobs.attempt import Converted, Died, Interrupted, OwnClaim, TimeLimits, attempt
from reshard_server.jobs.conversion_job import make_child_request
from reshard_server.schemas.conversion import OneTarget
from reshard_server.settings import Settings
from reshard_server.worker.children import Children

from tests.server.jobs.replica import OneRoot
from tests.server.jobs.world import World, is_gone
from tests.server.live import live
from tests.server.postgres import Postgres
from tests.server.proxy import Proxy, proxied

LEASE = 5.0
"""Not the least: a process that a busy machine holds up for some seconds still renews it."""

NEWS = "reshard_server.db.connections"
SOON = {
    f"{NEWS}.ANSWER_SECONDS": 1.0,
    f"{NEWS}.BoundedConnection.answer_seconds": 1.0,
    f"{NEWS}.CONNECT_ARGUMENTS": {"connect_timeout": 2},
    "reshard_server.db.database.CONNECT_ARGUMENTS": {"connect_timeout": 2},
}

PATIENCE_SECONDS = 120.0
"""A wait that is not endless is shorter, on a machine that is busy, too."""


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        yield Path(folder)


@pytest.mark.campaign
def test_a_child_ends_before_another_replica_takes_over(shared_world: World, sockets: Path) -> None:
    url, proxies = shared_world.url, list[Proxy]()
    with ExitStack() as opened:
        for name in "ab":
            (sockets / name).mkdir()
            proxies.append(opened.enter_context(proxied(url, sockets / name)))
            shared_world.url = proxies[-1].url
            shared_world.start(lease_seconds=LEASE)
        shared_world.url = url
        job = shared_world.held()
        (lost, other), (proxy, _) = shared_world.replicas, proxies
        if not lost.children():
            (other, lost), (_, proxy) = shared_world.replicas, proxies
        [child] = lost.children()
        proxy.black_hole()
        shared_world.wait_for(job, lambda c: c.attempts == 2)
        assert is_gone(child)
        assert not lost.children()
        shared_world.let_go()
        assert "waiting for the target" not in other.log.read_text()
        assert shared_world.ended(job).state == "succeeded"
        assert shared_world.is_equal()
        assert lost.end() == 0


def test_a_replica_goes_on_when_its_database_is_back(shared_world: World, sockets: Path) -> None:
    with proxied(shared_world.url, sockets) as proxy:
        shared_world.url = proxy.url
        replica = shared_world.start(lease_seconds=LEASE)
        job = shared_world.held()
        [child] = replica.children()
        proxy.black_hole()
        assert is_gone(child)
        shared_world.let_go()
        proxy.mend()
        assert shared_world.ended(job).state == "succeeded"
        assert shared_world.is_equal()


def test_readiness_is_answered_soon_and_the_server_ends(
    postgres: Postgres, tmp_path: Path, sockets: Path
) -> None:
    with (
        proxied(postgres.new_database(), sockets) as proxy,
        live(
            tmp_path, database_url=proxy.url, lease_seconds=LEASE, drain_seconds=1, waits=SOON
        ) as server,
    ):
        proxy.black_hole()
        answers = []
        for _ in range(2):
            answers.append(httpx.get(f"{server.url}/readyz", timeout=PATIENCE_SECONDS))
            livez = httpx.get(f"{server.url}/livez", timeout=PATIENCE_SECONDS)
            assert livez.status_code == 200
        assert {answer.status_code for answer in answers} == {503}
        said = {answer.json()["detail"] for answer in answers}
        assert said <= {
            "the database gave no answer within 2 s; see the server's log",
            "the database confirms no heartbeat; see the server's log",
            "the database does not answer; see the server's log",
        }
        assert server.end(PATIENCE_SECONDS) == 0


def test_no_statement_is_waited_for_for_ever(
    postgres: Postgres, tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.BoundedConnection, "answer_seconds", 1.0)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 1.0)
    monkeypatch.setitem(connections.CONNECT_ARGUMENTS, "connect_timeout", 2)
    with proxied(postgres.new_database(), sockets) as proxy:
        db = open_database(Settings(state=tmp_path, database_url=proxy.url))
        with db.connect() as connection:
            connection.execute(sa.select(1))
            connection.commit()  # an idle transaction is ended by the server, sooner
            proxy.black_hole()
            asked_at = time.monotonic()
            with pytest.raises(sa.exc.OperationalError, match="no answer within 1 s"):
                connection.execute(sa.select(2))
            assert time.monotonic() - asked_at < PATIENCE_SECONDS
        asked_at = time.monotonic()
        with pytest.raises(sa.exc.OperationalError):
            db.connect()
        assert time.monotonic() - asked_at < PATIENCE_SECONDS
        proxy.mend()
        with db.connect() as connection:
            assert connection.execute(sa.select(3)).scalar() == 3
        db.dispose()


def test_the_database_ends_statements_that_take_too_long(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ANSWER_SECONDS", 1.0)
    db = open_database(Settings(state=tmp_path, database_url=postgres.new_database()))
    with db.connect() as connection, pytest.raises(sa.exc.OperationalError):
        connection.execute(sa.text("SELECT pg_sleep(30)"))
    db.dispose()


class AskedClaim(OwnClaim):
    """A claim whose database is asked by the test."""

    def __init__(self, world: World, job: str, **more: Any) -> None:
        claim = claims.claim_next(world.db, "me", claims.new_claim_text(), 9)
        assert claim is not None and claim.conversion == job
        ends = more.pop("lease_ends", lambda: host_seconds() + 60)
        super().__init__(world.db, claim, threading.Event(), 5.0, ends)
        assert self.begin_attempt()


def document(world: World, job: str) -> dict[str, Any]:
    conversion = conversions.get(world.db, job)
    assert conversion is not None
    settings = Settings(state=world.folder)
    made = make_child_request(world.db, settings, OneRoot(world.data), conversion, begun=False)
    return {**made, "niceness": 0}


def unlimited(world: World) -> TimeLimits:
    request = OneTarget(source="data/source", target="data/out")
    return TimeLimits(Settings(state=world.folder), request)


def test_an_attempt_that_is_not_the_conversions_any_more_publishes_nothing(
    small_world: World, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    job = small_world.convert()
    held = AskedClaim(small_world, job)
    monkeypatch.setattr(held, "order", lambda: "continue")  # as if it was frozen until now
    lost = Claim(job, "me", held.claim.text)
    assert claims.begin_attempt(small_world.db, lost) == 2  # another attempt runs
    outcome = attempt(document(small_world, job), held, unlimited(small_world), children)
    assert outcome == Interrupted("lost")
    assert not (small_world.data / "out").exists()
    held.attempt = 2
    outcome = attempt(document(small_world, job), held, unlimited(small_world), children)
    assert isinstance(outcome, Converted)
    assert small_world.is_equal()


def test_no_answer_is_no_permission(
    small_world: World, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    held = AskedClaim(small_world, small_world.convert())

    def unreachable(*_: Any) -> bool:
        raise sa.exc.OperationalError("SELECT", None, OSError("gone"))

    monkeypatch.setattr(claims, "may_publish", unreachable)
    assert attempt(
        document(small_world, held.claim.conversion), held, unlimited(small_world), children
    ) == Interrupted("lost")
    assert not (small_world.data / "out").exists()


def test_a_child_ends_with_its_lease(
    small_world: World, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    ends = host_seconds() - 1
    held = AskedClaim(small_world, small_world.convert(), lease_ends=lambda: ends)
    monkeypatch.setattr(held, "order", lambda: "continue")
    assert attempt(
        document(small_world, held.claim.conversion), held, unlimited(small_world), children
    ) == Interrupted("lost")


def test_an_attempt_for_which_no_process_starts_is_made_again(
    small_world: World,
    monkeypatch: pytest.MonkeyPatch,
    children: Children,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = AskedClaim(small_world, small_world.convert())
    asked = document(small_world, held.claim.conversion)

    def no_more_descriptors() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", no_more_descriptors)
        outcome = attempt(asked, held, unlimited(small_world), children)
    assert outcome == Died("could not be started", None)
    assert "no process could be started: [Errno 24] Too many open files" in caplog.text


@pytest.mark.parametrize("change", ["cancelled", "another attempt", "another claim"])
def test_who_may_publish(small_world: World, change: str) -> None:
    job = small_world.convert()
    held = AskedClaim(small_world, job)
    assert held.may_publish()
    if change == "cancelled":
        conversions.request_cancel(small_world.db, job)
    elif change == "another attempt":
        assert claims.begin_attempt(small_world.db, held.claim) == 2
    else:
        held.hand_back()
    assert not held.may_publish()
