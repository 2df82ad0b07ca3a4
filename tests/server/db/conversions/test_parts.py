"""Conversions in parts by the statements of their records: split, ended, stopped, retried, forgotten; on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db.clock import clock_of, now_of
from reshard_server.db.conversions import claims, conversions, executors, rows
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.conversions.executors import Host
from reshard_server.db.conversions.parts import Split
from reshard_server.db.conversions.places import places
from reshard_server.db.conversions.rows import totals
from reshard_server.db.conversions.workload import workload
from reshard_server.db.documents import UnreadableError
from reshard_server.db.tables import CONVERSION_NEEDS, CONVERSIONS
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
    ProgressState,
)

from tests.server.threads import run_together

MANY = 1000
GIB = 1 << 30
ERROR = {"type": "urn:reshard:problem:x", "title": "x", "status": 500, "detail": "no space"}


@pytest.fixture
def db(each_db: sa.Engine) -> sa.Engine:
    return each_db


def made(db: sa.Engine, token: str = "ann", **more: Any) -> str:
    request = OneTarget(source="data/a", target="data/b", **{"parts": 3, **more})
    return conversions.create(db, token=token, request=request).id


def next_claim(
    db: sa.Engine, host: Host | None = None, limit: int = MANY, by: str = "one"
) -> Claim | None:
    return claims.claim_next(db, by, claims.new_claim_text(), limit, (), host)


def won(db: sa.Engine, **more: Any) -> Claim:
    claim = next_claim(db, **more)
    assert claim is not None
    assert claims.begin_attempt(db, claim)
    return claim


def into(db: sa.Engine, parts: int, anew: bool = False, claim: Claim | None = None) -> None:
    """Splits the conversion that is next, which has 100 bytes."""
    assert claims.split(db, claim or won(db), Split(parts, 100, anew, GIB, 2))


def read(db: sa.Engine, conversion: str) -> Conversion:
    found = conversions.get(db, conversion)
    assert found is not None
    return found


def states(db: sa.Engine, conversion: str) -> list[str]:
    parts = read(db, conversion).parts
    assert parts is not None
    return [part.state for part in parts]


def at(moved: int) -> ProgressState:
    return ProgressState(
        stage="copying", moved_bytes=moved, total_bytes=50, tasks_done=1, tasks=2, tensor="w",
        bytes_per_second=10.0,
    )  # fmt: skip


def test_the_way_of_one_that_succeeds(db: sa.Engine) -> None:
    job = made(db)
    into(db, 2)
    found = read(db, job)
    assert (found.state, found.part_counts, states(db, job)) == (
        "running",
        {"queued": 2},
        ["queued"] * 2,
    )
    first, second = won(db), won(db)
    assert [(c.whole, c.part, c.parts, c.commits) for c in (first, second)] == [
        (job, 1, 2, False), (job, 2, 2, False),
    ]  # fmt: skip
    assert (first.max_memory, first.workers) == (GIB, 2)
    assert next_claim(db) is None  # it waits for its parts
    assert claims.finish(db, first, "succeeded", read_bytes=7)
    assert next_claim(db) is None
    assert claims.finish(db, second, "succeeded", read_bytes=8)
    assert not claims.finish(db, second, "succeeded")
    assert read(db, job).state == "running"
    commit = won(db)
    assert (commit.conversion, commit.part, commit.commits) == (job, None, True)
    assert claims.finish(db, commit, "succeeded", result=[{"moved_bytes": 100}])
    assert read(db, job).done
    assert sum(total.conversions for total in totals(db)) == 1  # parts are not counted
    assert next_claim(db) is None


def test_progress_and_revision_are_those_of_all_parts(db: sa.Engine) -> None:
    job = made(db)
    into(db, 2)
    before = read(db, job)
    assert before.progress is not None and before.progress.total_bytes == 100
    first, second = won(db), won(db)
    for claim, moved in ((first, 20), (second, 30)):
        assert claims.set_progress(db, claim, at(moved)) == "running"
    found = read(db, job)
    now = found.progress
    assert now is not None
    assert (now.stage, now.moved_bytes, now.total_bytes, now.tasks_done) == ("copying", 50, 100, 2)
    assert (now.bytes_per_second, now.seconds_left) == (20.0, 2.5)
    assert found.revision == conversions.revisions(db, [job])[job] > before.revision
    assert claims.finish(db, first, "succeeded", progress=at(50))
    assert claims.finish(db, second, "succeeded", progress=at(50))
    now = read(db, job).progress
    assert now is not None and now.moved_bytes == 100


def test_no_part_is_listed_counted_or_found(db: sa.Engine) -> None:
    job = made(db)
    into(db, 3)
    part = won(db)
    page = conversions.page(db, Filters(), 50)
    assert [one.id for one in page.conversions] == [job]
    assert page.conversions[0].parts is None
    assert page.conversions[0].part_counts == {"queued": 2, "running": 1}
    assert conversions.count_by_state(db) == {"running": 1}
    with db.connect() as connection:
        assert conversions.count_queued(connection, "ann") == 0
    assert conversions.get(db, part.conversion) is None
    assert conversions.get_many(db, [part.conversion]) == {}
    assert conversions.request_cancel(db, part.conversion) is None
    assert conversions.requeue(db, part.conversion) is None
    assert not conversions.delete(db, part.conversion)
    assert states(db, job) == ["running", "queued", "queued"]


def test_a_part_that_fails_stops_the_others(db: sa.Engine) -> None:
    job = made(db)
    into(db, 4)
    done, first, second = won(db), won(db), won(db)
    assert claims.finish(db, done, "succeeded")
    assert claims.finish(db, first, "failed", error=ERROR)
    found = read(db, job)
    assert (found.state, found.error) == ("cancelling", ERROR)
    assert states(db, job) == ["succeeded", "failed", "cancelling", "cancelled"]
    assert claims.state_of(db, second) == "cancelling"
    assert next_claim(db) is None
    later = {**ERROR, "detail": "another one"}
    assert claims.finish(db, second, "failed", error=later)
    found = read(db, job)
    assert (found.state, found.error) == ("failed", ERROR)
    assert found.ended_at is not None
    assert [(t.state, t.conversions) for t in totals(db)] == [("failed", 1)]


def test_a_retry_queues_what_did_not_succeed(db: sa.Engine) -> None:
    job = made(db)
    into(db, 3)
    done, failed = won(db), won(db)
    assert claims.finish(db, done, "succeeded")
    assert claims.finish(db, failed, "failed", error=ERROR)
    before = read(db, job).revision
    assert conversions.requeue(db, job)
    assert read(db, job).state == "queued"
    again = won(db)
    assert (again.conversion, again.part, again.parts, again.max_memory) == (job, None, 3, GIB)
    into(db, 3, claim=again)
    assert states(db, job) == ["succeeded", "queued", "queued"]
    assert [one.error for one in read(db, job).parts or ()] == [None] * 3
    for claim in (won(db), won(db)):
        assert claims.finish(db, claim, "succeeded")
    assert won(db).commits
    assert read(db, job).revision > before


def test_what_could_not_be_resumed_begins_anew(db: sa.Engine) -> None:
    job = made(db)
    into(db, 3)
    done, failed = won(db), won(db)
    assert claims.finish(db, done, "succeeded")
    assert claims.finish(db, failed, "failed", error=ERROR)
    before = read(db, job).revision
    assert conversions.requeue(db, job)
    into(db, 3, anew=True)
    assert states(db, job) == ["queued"] * 3
    assert read(db, job).revision > before


def test_a_retry_of_a_commit_splits_again_and_commits(db: sa.Engine) -> None:
    job = made(db)
    into(db, 1)
    assert claims.finish(db, won(db), "succeeded")
    assert claims.finish(db, won(db), "failed", error=ERROR)
    assert conversions.requeue(db, job)
    again = won(db)
    assert not again.commits
    into(db, 1, claim=again)
    assert won(db).commits


def test_targets_that_are_finished_need_no_part(db: sa.Engine) -> None:
    job = made(db)
    into(db, 0)
    assert read(db, job).parts == []
    assert won(db).commits


def test_a_cancellation_ends_once_no_part_runs(db: sa.Engine) -> None:
    job = made(db)
    into(db, 3)
    running = won(db)
    now = conversions.request_cancel(db, job)
    assert now is not None and now.state == "cancelling"
    assert states(db, job) == ["cancelling", "cancelled", "cancelled"]
    assert claims.finish(db, running, "cancelled")
    assert read(db, job).state == "cancelled"
    assert read(db, job).error is None


@pytest.mark.parametrize("left", [1, 0])
def test_a_cancellation_of_what_only_waits_ends_at_once(db: sa.Engine, left: int) -> None:
    job = made(db)
    into(db, 1)
    if not left:
        assert claims.finish(db, won(db), "succeeded")
    now = conversions.request_cancel(db, job)
    assert now is not None and now.state == "cancelled"
    assert next_claim(db) is None


def test_a_split_of_what_is_to_be_cancelled_changes_nothing(db: sa.Engine) -> None:
    job = made(db)
    claim = won(db)
    conversions.request_cancel(db, job)
    assert not claims.split(db, claim, Split(3, 100, False, GIB, 2))
    assert claims.finish(db, claim, "cancelled")
    assert read(db, job).part_counts is None


def silent(db: sa.Engine) -> int:
    return claims.take_from_silent(db, now_of(db) - 60, "another", lambda _: True)


def test_parts_of_the_silent_are_queued_again_and_their_claims_change_nothing(
    db: sa.Engine,
) -> None:
    job = made(db)
    into(db, 2)
    lost = won(db)
    assert silent(db) == 1
    assert states(db, job) == ["queued", "queued"]
    again = won(db)
    assert again.conversion == lost.conversion
    assert not claims.finish(db, lost, "succeeded")
    assert claims.set_progress(db, lost, at(1)) is None
    assert not claims.may_publish(db, lost, 1)
    assert claims.finish(db, again, "succeeded")
    assert states(db, job) == ["succeeded", "queued"]
    conversions.request_cancel(db, job)
    assert read(db, job).state == "cancelled"


@pytest.mark.parametrize("does", ["split", "commit"])
def test_a_split_and_a_commit_of_the_silent_are_claimed_again(db: sa.Engine, does: str) -> None:
    made(db)
    if does == "commit":
        into(db, 1)
        assert claims.finish(db, won(db), "succeeded")
    lost = won(db)
    assert silent(db) == 1
    again = won(db)
    assert (again.conversion, again.commits) == (lost.conversion, does == "commit")
    assert not claims.split(db, lost, Split(3, 100, False, GIB, 2))
    assert not claims.may_publish(db, lost, 1)


def test_the_last_part_of_a_silent_host_ends_a_cancellation(db: sa.Engine) -> None:
    job = made(db)
    into(db, 2)
    won(db)
    conversions.request_cancel(db, job)
    assert silent(db) == 1
    assert read(db, job).state == "cancelled"


def test_of_parts_that_end_at_once_each_is_seen(db: sa.Engine) -> None:
    """The last one counts: none of them may believe that another one still runs."""
    for end, ended in (("succeeded", "running"), ("cancelled", "cancelled")):
        job = made(db)
        into(db, 6)
        held = [won(db) for _ in range(6)]
        if end == "cancelled":
            conversions.request_cancel(db, job)
        calls: list[Callable[[], bool]] = [partial(claims.finish, db, one, end) for one in held]
        assert run_together(calls) == [True] * 6
        assert read(db, job).state == ended
        if end == "succeeded":
            assert claims.finish(db, won(db), "succeeded", result=[])


def test_parts_count_for_fair_shares_and_their_conversion_does_not(db: sa.Engine) -> None:
    made(db, "ann")
    into(db, 4)
    for _ in range(2):
        won(db, limit=2)
    assert next_claim(db, limit=2) is None
    other = made(db, "bob")
    assert places(db, [read(db, other)]) == {other: 1}
    assert won(db, limit=2).conversion == other


def test_a_host_takes_what_it_has_memory_and_labels_for(db: sa.Engine) -> None:
    labelled = made(db, host_labels={"disk": "nvme", "zone": "a"})
    large = made(db, max_memory="2GiB", parts=None)
    small = Host(GIB, 2, {"disk": "nvme"}, "small")
    assert next_claim(db, small) is None
    executors.beat(db, "x", small)
    assert read(db, labelled).waiting_for == (
        "a host with the label disk=nvme and the label zone=a; of the 1 that are live none has that: start one (reshard work), or cancel the "
        "conversion and ask for less"
    )
    assert "max_memory of 2GiB or more" in str(read(db, large).waiting_for)
    fit = Host(2 * GIB, 2, {"disk": "nvme", "zone": "a", "more": "x"}, "fit")
    executors.beat(db, "y", fit)
    assert read(db, labelled).waiting_for is None
    into(db, 1, claim=won(db, host=fit))
    assert won(db, host=fit).whole == labelled
    assert next_claim(db, Host(2 * GIB, 2, {"zone": "a"}, "other label")).conversion == large  # type: ignore[union-attr]  # it is there
    assert next_claim(db, fit) is None


def test_parts_need_the_memory_of_the_split(db: sa.Engine) -> None:
    made(db)
    into(db, 1)
    assert next_claim(db, Host(GIB - 1)) is None
    assert won(db, host=Host(GIB)).part == 1


def test_what_waits_and_runs(db: sa.Engine) -> None:
    made(db)
    into(db, 3)
    made(db)
    host = Host(GIB, 4, {}, "one")
    executors.beat(db, "one", host)
    assert claims.set_progress(db, won(db, host=host), at(20)) == "running"
    now = workload(db)
    assert (now.waiting, now.parts) == (3, {"queued": 2, "running": 1})
    assert (now.moved_bytes, now.left_bytes, now.bytes_per_second) == (20, 80, 10.0)
    assert (now.slots, now.running) == ({"one": 4}, {"one": 1})


def test_parts_are_forgotten_with_their_conversion(db: sa.Engine) -> None:
    for removed in (
        conversions.delete,
        lambda db, _: rows.remove_ended(db, clock_of(db).now() + 1),
    ):
        job = made(db, host_labels={"disk": "nvme"})
        into(db, 3, claim=won(db, host=Host(GIB, 1, {"disk": "nvme"})))
        conversions.request_cancel(db, job)
        assert removed(db, job)
        with db.connect() as connection:
            for table in (CONVERSIONS, CONVERSION_NEEDS):
                assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 0


def test_an_earlier_version_leaves_parts_alone(db: sa.Engine) -> None:
    """It reads every row as a conversion: a part has no request that it could carry out."""
    job = made(db)
    into(db, 2)
    with db.connect() as connection:
        found = connection.execute(sa.select(CONVERSIONS).where(CONVERSIONS.c.parent == job)).all()
    for row in found:
        with pytest.raises(UnreadableError):
            rows.conversion_of(row)
