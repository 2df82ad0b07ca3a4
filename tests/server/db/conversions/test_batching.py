"""Conversions requested at the same time: one transaction for all, and an error in one affects only that one."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from anyio import CapacityLimiter
from reshard_server.db.clock import clock_of
from reshard_server.db.conversions import conversions, created
from reshard_server.db.conversions import created as together
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.conversions.created import BatchRecorder, Made, Submission
from reshard_server.errors.problems import ProblemError
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
)


@pytest.fixture
def db(each_db: sa.Engine) -> sa.Engine:
    clock_of(each_db).ask()  # as a server has at its start
    return each_db


def asked(number: int, token: str = "ann", **more: str) -> Submission:
    request = OneTarget(source="data/a", target=f"data/b{number}", labels={"n": f"{number}"})
    return Submission(token, request, **more)


def create(db: sa.Engine, wanted: list[Submission], most: int = 100) -> list[Made | BaseException]:
    """All at the same time."""

    async def run() -> list[Made | BaseException]:
        one = BatchRecorder(db, most, CapacityLimiter(4))
        return await asyncio.gather(*map(one.create, wanted), return_exceptions=True)

    return asyncio.run(run())


def kept(db: sa.Engine) -> list[Conversion]:
    return conversions.page(db, Filters(), 100).conversions[::-1]


def count_commits(db: sa.Engine) -> list[object]:
    commits: list[object] = []
    sa.event.listen(db, "commit", commits.append)
    return commits


def test_a_burst_takes_two_transactions(db: sa.Engine) -> None:
    """The first is written at once; the others are collected meanwhile."""
    commits = count_commits(db)
    wanted = [asked(n, key=f"k{n}") for n in range(40)]
    found = create(db, wanted)
    assert len(commits) <= 2
    assert [one.request for one in kept(db)] == [one.request for one in wanted]
    assert found == [(one, True) for one in kept(db)]


def test_no_transaction_takes_too_many(db: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "MOST", 8)
    commits = count_commits(db)
    create(db, [asked(n) for n in range(40)])
    assert 5 <= len(commits) <= 6
    assert len(kept(db)) == 40


def test_a_key_sent_twice_leads_to_one_conversion(db: sa.Engine) -> None:
    wanted = [asked(n) for n in range(5)] + [asked(7, key="k"), asked(7, key="k")]
    found = create(db, wanted)
    assert len(kept(db)) == 6
    [first, second] = [one for one in found[5:] if not isinstance(one, BaseException)]
    assert first[0] == second[0]
    assert {first[1], second[1]} == {True, False}


def test_keys_sent_again_hold_up_no_others(db: sa.Engine) -> None:
    first = create(db, [asked(n, key=f"k{n}") for n in range(20)])
    commits = count_commits(db)
    again = create(db, [asked(n, key=f"k{n}") for n in range(25)])
    assert len(commits) == 1
    assert again[:20] == [(made, False) for made, _ in first]
    assert all(not isinstance(one, BaseException) and one[1] for one in again[20:])
    assert len(kept(db)) == 25


def test_a_key_of_another_request_is_refused_alone(db: sa.Engine) -> None:
    created.create_once(db, asked(0, key="k"), 100)
    found = create(db, [asked(1), asked(2, key="k"), asked(3)])
    assert [isinstance(one, ProblemError) for one in found] == [False, True, False]
    assert "the Idempotency-Key 'k' was sent before with another request" in str(found[1])
    assert len(kept(db)) == 3


def test_too_many_of_one_token_are_no_matter_of_others(db: sa.Engine) -> None:
    found = create(db, [asked(n) for n in range(4)] + [asked(9, token="bob")], most=3)
    refused = [one for one in found if isinstance(one, ProblemError)]
    assert [one.detail for one in refused] == [
        "3 conversions of the token 'ann' wait already, the most that may wait; wait until some have ended, or cancel some"
    ]
    assert sorted(one.created_by for one in kept(db)) == ["ann", "ann", "ann", "bob"]


def test_a_key_is_known_though_too_many_wait(db: sa.Engine) -> None:
    first, _ = created.create_once(db, asked(0, key="k"), 1)
    assert create(db, [asked(0, key="k")], most=1) == [(first, False)]


def test_a_key_that_is_known_no_longer_leads_to_another(
    db: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = created.create_once(db, asked(0, key="k"), 100)
    monkeypatch.setattr(created, "KEPT_SECONDS", -1)
    second, is_new = created.create_once(db, asked(0, key="k"), 100)
    assert is_new
    assert second.id != first.id


def test_a_database_that_is_gone_is_told_to_each(db: sa.Engine) -> None:
    with db.begin() as connection:
        connection.execute(sa.text("DROP TABLE conversion_labels"))
    found = create(db, [asked(n) for n in range(3)])
    assert all(isinstance(one, sa.exc.DatabaseError) for one in found)
    assert kept(db) == []
