"""The turns of tokens, claims of executors, and conversions taken from dead executors; on SQLite and PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from reshard_server.db.clock import now_of
from reshard_server.db.conversions import claims, conversions, executors, rows
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.conversions.conversions import New
from reshard_server.db.database import open_database
from reshard_server.db.tables import CONVERSIONS, EXECUTORS
from reshard_server.schemas.conversion import (
    OneTarget,
    ProgressState,
)
from reshard_server.settings import Settings

from tests.server.threads import run_together

SILENT_SECONDS = 600
"""Longer than a test takes: who sent a heartbeat in it lives."""

PROGRESS = ProgressState(
    stage="copying", moved_bytes=5, total_bytes=10, tasks_done=1, tasks=2, tensor="w"
)


@pytest.fixture
def db(each_db: sa.Engine) -> sa.Engine:
    return each_db


def queue(db: sa.Engine, token: str = "ann", priority: int = 0) -> str:
    request = OneTarget(source="data/a", target="data/b", priority=priority)
    return conversions.create(db, token=token, request=request).id


def claim(db: sa.Engine, limit: int = 100, executor: str = "one") -> Claim | None:
    return claims.claim_next(db, executor, claims.new_claim_text(), limit)


def won(db: sa.Engine, executor: str = "one") -> Claim:
    found = claim(db, executor=executor)
    assert found is not None
    return found


def state(db: sa.Engine, conversion: str) -> str:
    found = conversions.get(db, conversion)
    assert found is not None
    return found.state


def silent(db: sa.Engine, own: str = "one", mine: tuple[str, ...] | None = None) -> int:
    is_mine = (lambda _: True) if mine is None else mine.__contains__
    return claims.take_from_silent(db, now_of(db) - SILENT_SECONDS, own, is_mine)


def test_of_tokens_never_served_the_highest_priority_is_next_then_the_oldest(db: sa.Engine) -> None:
    low, first = queue(db, "ann", -1), queue(db, "ann")
    second, high = queue(db, "bob"), queue(db, "cid", 5)
    assert [won(db).conversion for _ in range(4)] == [high, first, second, low]
    assert claim(db) is None


def served(db: sa.Engine, jobs: int) -> list[str]:
    """Conversions as a server that runs one at a time carries them out."""
    order = []
    for _ in range(jobs):
        held = won(db)
        order.append(held.conversion)
        assert claims.finish(db, held, "succeeded", result=[])
        assert conversions.delete(db, held.conversion)
    return order


def test_many_conversions_of_one_token_hold_up_no_other(db: sa.Engine) -> None:
    many = [queue(db, "ann", priority=5) for _ in range(14)]
    bob, cid = queue(db, "bob"), queue(db, "cid", -5)
    assert [won(db).conversion for _ in range(4)] == [many[0], bob, cid, many[1]]


def test_tokens_take_turns_where_one_conversion_runs_at_a_time(db: sa.Engine) -> None:
    many = [queue(db, "ann", priority=100) for _ in range(4)]
    low, high = queue(db, "bob", -1), queue(db, "bob", 1)
    cid = queue(db, "cid")
    assert served(db, 7) == [many[0], high, cid, many[1], low, many[2], many[3]]


def test_a_token_that_runs_less_is_next_even_if_it_was_served_last(db: sa.Engine) -> None:
    ann = [queue(db, "ann") for _ in range(3)]
    assert [won(db).conversion for _ in range(2)] == ann[:2]
    bob = [queue(db, "bob") for _ in range(3)]
    assert [won(db).conversion for _ in range(3)] == [*bob[:2], ann[2]]


def test_choosing_among_many_that_wait_is_quick(db: sa.Engine) -> None:
    request = OneTarget(source="data/a", target="data/b")
    with db.begin() as connection:
        conversions.insert(connection, [New(f"token{i % 20}", request) for i in range(10_000)])
    began = time.monotonic()
    tokens = set()
    for _ in range(20):
        found = conversions.get(db, won(db).conversion)
        assert found is not None
        tokens.add(found.created_by)
    assert time.monotonic() - began < 120  # to look at all for each of them takes far longer
    assert len(tokens) == 20


def test_a_token_at_its_limit_is_passed_over(db: sa.Engine) -> None:
    first, second, other = queue(db, "ann", 5), queue(db, "ann", 5), queue(db, "bob")
    held = claim(db, 1)
    assert held is not None
    assert held.conversion == first
    conversions.request_cancel(db, first)  # it runs until it has stopped
    assert (found := claim(db, 1)) is not None
    assert found.conversion == other
    assert claim(db, 1) is None
    assert claims.finish(db, held, "cancelled")
    assert (found := claim(db, 1)) is not None
    assert found.conversion == second


def test_of_many_that_ask_at_once_each_gets_another_and_none_too_many(db: sa.Engine) -> None:
    jobs = {queue(db, token) for token in ("ann", "bob") for _ in range(6)}

    def ask() -> list[str]:
        return [mine.conversion for mine in iter(lambda: claim(db, 4), None)]

    taken = [conversion for each in run_together([ask] * 8) for conversion in each]
    assert len(taken) == len(set(taken)) == 8
    assert set(taken) < jobs


def test_who_lost_a_claim_changes_nothing(db: sa.Engine) -> None:
    job = queue(db)
    lost = won(db, "dead")
    assert silent(db) == 1
    held = won(db, "one")
    before = conversions.get(db, job)
    assert not claims.begin_attempt(db, lost)
    assert claims.set_progress(db, lost, PROGRESS) is None
    assert claims.state_of(db, lost) is None
    assert not claims.finish(db, lost, "failed")
    claims.hand_back(db, lost)
    assert conversions.get(db, job) == before
    assert claims.begin_attempt(db, held)
    assert claims.set_progress(db, held, PROGRESS) == "running"
    assert claims.finish(db, held, "succeeded", result=[])
    assert not claims.finish(db, held, "failed")


def test_who_is_heard_of_keeps_what_it_holds(db: sa.Engine) -> None:
    job = queue(db)
    executors.beat(db, "live")
    won(db, "live")
    assert silent(db) == 0
    executors.leave(db, "live")
    assert silent(db) == 1
    assert state(db, job) == "queued"


def test_heartbeats_are_by_the_databases_clock(db: sa.Engine) -> None:
    before = time.time()
    executors.beat(db, "one")
    with db.connect() as connection:
        [row] = connection.execute(sa.select(EXECUTORS))
    assert before - 0.01 < row.heartbeat_at < time.time() + 0.01  # SQLite's has milliseconds
    time.sleep(0.01)
    executors.beat(db, "one")
    with db.connect() as connection:
        [later] = connection.execute(sa.select(EXECUTORS))
    assert later.heartbeat_at > row.heartbeat_at


def test_what_this_process_gave_up_is_queued_again(db: sa.Engine) -> None:
    kept, given_up = queue(db, priority=1), queue(db)
    first = won(db).text
    won(db)
    assert silent(db, mine=(first,)) == 1
    assert (state(db, kept), state(db, given_up)) == ("running", "queued")


def test_what_the_dead_were_to_cancel_is_cancelled(db: sa.Engine) -> None:
    job = queue(db)
    won(db, "dead")
    conversions.request_cancel(db, job)
    assert silent(db) == 1
    found = conversions.get(db, job)
    assert found is not None
    assert found.state == "cancelled"
    assert found.ended_at is not None


def test_a_transaction_of_a_frozen_process_is_ended(postgres: object, tmp_path: Path) -> None:
    """A frozen transaction would keep the lock that every claim needs."""
    url = postgres.new_database()
    engine = open_database(Settings(state=tmp_path, database_url=url))
    job = queue(engine)
    frozen = engine.connect()
    began = time.monotonic()
    frozen.execute(sa.select(sa.func.pg_advisory_xact_lock(claims.TURN_KEY)))
    assert won(engine).conversion == job
    assert time.monotonic() - began > 1
    frozen.invalidate()
    frozen.close()
    engine.dispose()


def test_every_end_is_counted_once(db: sa.Engine) -> None:
    for _ in range(3):
        queue(db)
    done, lost = won(db), won(db, "dead")
    assert claims.begin_attempt(db, done)
    assert claims.finish(db, done, "succeeded", result=[{"moved_bytes": 7}])
    assert not claims.finish(db, done, "failed")
    conversions.request_cancel(db, lost.conversion)
    assert silent(db) == 1
    assert silent(db) == 0
    found = {(t.state, t.conversions, t.moved_bytes) for t in rows.totals(db)}
    assert found == {("succeeded", 1, 7), ("cancelled", 1, 0)}


def test_old_ends_are_forgotten_and_nothing_else(db: sa.Engine) -> None:
    old, new, running = queue(db), queue(db), queue(db)
    for _ in range(2):
        claims.finish(db, won(db), "succeeded", result=[])
    won(db)
    with db.begin() as connection:
        connection.execute(
            CONVERSIONS.update().where(CONVERSIONS.c.id == old).values(ended_at=time.time() - 100)
        )
    assert rows.remove_ended(db, time.time() - 50) == 1
    assert conversions.get(db, old) is None
    assert {state(db, new), state(db, running)} == {"succeeded", "running"}
