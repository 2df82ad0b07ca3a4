"""Conversions in the records: every change of state, refused changes, and pages of a growing list."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db.clock import now_of
from reshard_server.db.conversions import claims, conversions
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.database import open_database
from reshard_server.errors.problems import ProblemError
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
    ProgressState,
    SeveralTargets,
    State,
    TargetRequest,
)
from reshard_server.settings import Settings

from tests.server.by_state import of_states
from tests.server.claimed import begun, claimed
from tests.server.threads import run_together

PROGRESS = ProgressState(
    stage="copying", moved_bytes=5, total_bytes=10, tasks_done=1, tasks=2, tensor="params/w"
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_database(Settings(state=tmp_path))
    yield engine
    engine.dispose()


def wish(source: str = "data/a", **more: Any) -> OneTarget:
    return OneTarget(source=source, target="data/b", **more)


def made(db: sa.Engine, source: str = "data/a", token: str = "ann", **more: Any) -> Conversion:
    return conversions.create(db, token=token, request=wish(source, **more))


def in_state(db: sa.Engine, state: State) -> str:
    """A conversion that went the way to this state."""
    return standing(db, state).conversion


def standing(db: sa.Engine, state: State) -> Claim:
    """The claim of a conversion that reached this state; an invented one if none was won."""
    new = made(db).id
    claim = Claim(new, "other", "made up")
    if state in ("running", "cancelling", "succeeded", "failed"):
        claim = begun(db, new)
    if state in ("cancelling", "cancelled"):
        assert conversions.request_cancel(db, new)
    if state in ("succeeded", "failed"):
        assert claims.finish(db, claim, state)
    assert state_of(db, new) == state
    return claim


def state_of(db: sa.Engine, conversion: str) -> str | None:
    found = conversions.get(db, conversion)
    return found.state if found else None


def test_a_new_one_is_queued_and_reads_back_as_it_was_made(db: sa.Engine) -> None:
    request = wish(layout={"mesh": {"axes": ["x"], "shape": [2]}}, labels={"run": "7"}, priority=3)
    new = conversions.create(db, token="ann", request=request, schedule="nightly")
    assert (new.state, new.done, new.revision, new.attempts) == ("queued", False, 1, 0)
    assert (new.created_by, new.schedule, new.priority) == ("ann", "nightly", 3)
    assert new.request == request
    assert conversions.get(db, new.id) == new


def test_several_targets_read_back(db: sa.Engine) -> None:
    request = SeveralTargets(
        source="data/a", targets=(TargetRequest(target="data/b"), TargetRequest(target="data/c"))
    )
    new = conversions.create(db, token="ann", request=request)
    assert new.request == request


def test_ids_sort_by_time(db: sa.Engine) -> None:
    first = made(db).id
    threading.Event().wait(0.002)
    assert first < made(db).id


def test_the_way_of_one_that_succeeds(db: sa.Engine) -> None:
    new = made(db).id
    claim = begun(db, new)
    started = conversions.get(db, new)
    assert started and (started.state, started.attempts, started.revision) == ("running", 1, 3)
    assert started.started_at is not None
    assert claims.set_progress(db, claim, PROGRESS) == "running"
    told = conversions.get(db, new)
    assert told and (told.progress, told.revision) == (PROGRESS, 4)
    assert claims.finish(db, claim, "succeeded", result=[{"tensors": []}])
    ended = conversions.get(db, new)
    assert ended and (ended.state, ended.done, ended.result) == (
        "succeeded",
        True,
        [{"tensors": []}],
    )
    assert ended.ended_at is not None and ended.ended_at >= started.started_at


def test_an_attempt_after_a_dead_one_is_counted_and_keeps_the_first_start(db: sa.Engine) -> None:
    new = made(db).id
    begun(db, new)
    first = conversions.get(db, new)
    assert claims.take_from_silent(db, now_of(db), "one", ()) == 1
    begun(db, new)
    second = conversions.get(db, new)
    assert first and second and first.started_at is not None
    assert (second.attempts, second.started_at) == (2, first.started_at)


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelling"])
def test_no_attempt_begins_at_what_has_ended_or_is_to_be_cancelled(
    db: sa.Engine, state: State
) -> None:
    claim = standing(db, state)
    assert not claims.begin_attempt(db, claim)
    assert state_of(db, claim.conversion) == state


def test_no_attempt_begins_at_what_is_gone(db: sa.Engine) -> None:
    assert not claims.begin_attempt(db, Claim("none", "other", "made up"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("queued", "cancelled"),
        ("running", "cancelling"),
        ("cancelling", "cancelling"),
        ("cancelled", "cancelled"),
        ("succeeded", "succeeded"),
        ("failed", "failed"),
    ],
)
def test_cancelling(db: sa.Engine, before: State, after: State) -> None:
    found = conversions.request_cancel(db, in_state(db, before))
    assert found and found.state == after


def test_cancelling_what_is_gone(db: sa.Engine) -> None:
    assert conversions.request_cancel(db, "none") is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [("running", "running"), ("cancelling", "cancelling"), ("succeeded", None), ("failed", None)],
)
def test_whether_it_is_to_stop(db: sa.Engine, state: State, expected: str | None) -> None:
    assert claims.state_of(db, standing(db, state)) == expected


def test_what_is_gone_is_to_stop(db: sa.Engine) -> None:
    assert claims.state_of(db, Claim("none", "other", "made up")) is None


@pytest.mark.parametrize("state", ["queued", "succeeded", "failed", "cancelled"])
def test_only_what_runs_is_finished(db: sa.Engine, state: State) -> None:
    claim = standing(db, state)
    assert not claims.finish(db, claim, "failed", error={"title": "late"})
    assert state_of(db, claim.conversion) == state


def test_of_two_that_finish_one_wins(db: sa.Engine) -> None:
    claim = standing(db, "running")
    assert claims.finish(db, claim, "succeeded", result=[])
    assert not claims.finish(db, claim, "failed")
    assert state_of(db, claim.conversion) == "succeeded"


def test_progress_of_what_has_ended_is_not_told(db: sa.Engine) -> None:
    claim = standing(db, "succeeded")
    assert claims.set_progress(db, claim, PROGRESS) is None
    found = conversions.get(db, claim.conversion)
    assert found and found.progress is None


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_requeued(db: sa.Engine, state: State) -> None:
    ended = in_state(db, state)
    again = conversions.requeue(db, ended)
    assert again and (again.state, again.attempts, again.done) == ("queued", 0, False)
    assert (again.error, again.ended_at, again.started_at) == (None, None, None)
    assert again.revision > 2 - (state == "cancelled")


@pytest.mark.parametrize("state", ["queued", "running", "cancelling", "succeeded"])
def test_only_failed_and_cancelled_ones_are_requeued(db: sa.Engine, state: State) -> None:
    found = in_state(db, state)
    assert conversions.requeue(db, found) is None
    assert state_of(db, found) == state


@pytest.mark.parametrize("state", ["queued", "running", "cancelling"])
def test_only_what_has_ended_is_deleted(db: sa.Engine, state: State) -> None:
    found = in_state(db, state)
    assert not conversions.delete(db, found)
    assert state_of(db, found) == state


def test_deleted_with_its_labels(db: sa.Engine) -> None:
    new = made(db, labels={"run": "7"}).id
    conversions.request_cancel(db, new)
    assert conversions.delete(db, new)
    assert not conversions.delete(db, new)
    assert conversions.get(db, new) is None
    with db.connect() as connection:
        assert connection.execute(sa.text("select count(*) from conversion_labels")).scalar() == 0


def listed(db: sa.Engine, **filters: Any) -> list[str]:
    return [c.id for c in conversions.page(db, Filters(**filters), 100).conversions]


def test_filters(db: sa.Engine) -> None:
    one = made(db, "data/Run7/x", labels={"run": "7", "kind": "eval"})
    two = made(db, "data/run7/y", token="bob", labels={"run": "7"})
    three = conversions.create(db, token="bob", request=wish("data/run8"), schedule="nightly")
    conversions.request_cancel(db, three.id)
    assert listed(db) == [three.id, two.id, one.id]
    assert listed(db, source="data/run7/") == [two.id]
    assert listed(db, token="bob") == [three.id, two.id]
    assert listed(db, states=("cancelled", "failed")) == [three.id]
    assert listed(db, schedule="nightly") == [three.id]
    assert listed(db, labels=(("run", "7"),)) == [two.id, one.id]
    assert listed(db, labels=(("run", "7"), ("kind", "eval"))) == [one.id]
    assert listed(db, labels=(("run", "8"),)) == []
    between = two.created_at.timestamp()
    assert listed(db, created_after=between) == [three.id, two.id]
    assert listed(db, created_before=between) == [one.id]


def test_a_page_has_no_reports(db: sa.Engine) -> None:
    claim = begun(db, made(db).id)
    assert claims.finish(db, claim, "succeeded", result=[{"tensors": []}])
    (told,) = conversions.page(db, Filters(), 10).conversions
    whole = conversions.get(db, told.id)
    assert whole is not None and whole.result == [{"tensors": []}]
    address = f"/v1/conversions/{told.id}"
    assert told == whole.model_copy(update={"result": None, "result_url": address})


@pytest.mark.parametrize("source", ["data/%", "data/_", "DATA/"])
def test_a_source_prefix_is_no_pattern(db: sa.Engine, source: str) -> None:
    made(db, "data/a")
    assert listed(db, source=source) == []


def test_pages_are_stable_while_more_are_made(db: sa.Engine) -> None:
    old = [made(db).id for _ in range(7)][::-1]
    seen: list[str] = []
    token = None
    while True:
        found = conversions.page(db, Filters(), 3, token)
        seen += [c.id for c in found.conversions]
        made(db)
        token = found.next_page_token
        if token is None:
            break
    assert seen == old


def test_a_page_token_of_other_filters_is_refused(db: sa.Engine) -> None:
    for _ in range(3):
        made(db)
    token = conversions.page(db, Filters(), 1).next_page_token
    with pytest.raises(ProblemError) as raised:
        conversions.page(db, Filters(source="data/"), 1, token)
    assert raised.value.detail == (
        "page_token belongs to a listing with other filters; take next_page_token of the previous page, "
        "with the same filters"
    )


@pytest.mark.parametrize("token", ["x", "é", "bnVsbA", "W10", "=", "W1siYSJdLDEsMl0", "A" * 5000])
def test_a_page_token_that_was_never_made_is_refused(db: sa.Engine, token: str) -> None:
    with pytest.raises(ProblemError, match="page_token") as raised:
        conversions.page(db, Filters(), 1, token)
    assert raised.value.field == "page_token"


def test_counts_and_states(db: sa.Engine) -> None:
    queued = [in_state(db, "queued"), in_state(db, "queued")]
    running = in_state(db, "running")
    assert conversions.count_by_state(db) == {"queued": 2, "running": 1}
    assert [c.id for c in of_states(db, ("queued", "running"))] == [*queued, running]
    with db.connect() as connection:
        assert conversions.count_queued(connection, "ann") == 2
        assert conversions.count_queued(connection, "bob") == 0


def test_revisions_of_many(db: sa.Engine) -> None:
    one, two = in_state(db, "queued"), in_state(db, "running")
    assert conversions.revisions(db, [one, two, "none"]) == {one: 1, two: 3}
    assert set(conversions.get_many(db, [one, "none"])) == {one}


def test_many_threads_begin_and_count_every_attempt(db: sa.Engine) -> None:
    new = made(db).id
    claim = claimed(db, new)
    run_together([lambda: claims.begin_attempt(db, claim)] * 8)
    found = conversions.get(db, new)
    assert found and (found.attempts, found.revision) == (8, 10)
