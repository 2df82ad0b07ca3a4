"""Places in the queue are the order in which claims are won; on SQLite and PostgreSQL."""

from __future__ import annotations

import random

import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import claims, conversions
from reshard_server.db.conversions.places import places
from reshard_server.schemas.conversion import OneTarget

from tests.server.by_state import of_states

MANY = 1000


@pytest.fixture
def db(each_db: sa.Engine) -> sa.Engine:
    return each_db


def queue(db: sa.Engine, token: str, priority: int = 0) -> str:
    request = OneTarget(source="data/a", target="data/b", priority=priority)
    return conversions.create(db, token=token, request=request).id


def started_next(db: sa.Engine) -> str | None:
    claim = claims.claim_next(db, "one", claims.new_claim_text(), MANY)
    return None if claim is None else claim.conversion


def told(db: sa.Engine) -> dict[str, int]:
    return places(db, of_states(db, ["queued", "running", "cancelled"]))


@pytest.mark.parametrize("seed", range(8))
def test_they_start_in_that_order(db: sa.Engine, seed: int) -> None:
    chance = random.Random(seed)
    tokens = ["ann", "bob", "eve", "joe"][: chance.randint(1, 4)]
    for _ in range(chance.randint(1, 12)):
        queue(db, chance.choice(tokens), chance.randint(-1, 1))
    for _ in range(chance.randint(0, 6)):
        started_next(db)
    for _ in range(chance.randint(1, 12)):
        queue(db, chance.choice(tokens), chance.randint(-1, 1))
    found = told(db)
    started = list(iter(lambda: started_next(db), None))
    assert sorted(found, key=found.__getitem__) == started
    assert sorted(found.values()) == list(range(1, len(started) + 1))


def test_one_token_does_not_hold_up_another(db: sa.Engine) -> None:
    mine = [queue(db, "ann") for _ in range(14)]
    first = queue(db, "bob")
    found = told(db)
    assert (found[mine[0]], found[first], found[mine[1]]) == (1, 2, 3)
    assert found[mine[13]] == 15


def test_what_does_not_wait_has_none(db: sa.Engine) -> None:
    one = queue(db, "ann")
    assert started_next(db) == one
    other = queue(db, "ann")
    conversions.request_cancel(db, other)
    assert told(db) == {}
    assert places(db, []) == {}
