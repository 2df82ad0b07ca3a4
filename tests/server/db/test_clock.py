"""The records' clock is the database's, however wrong the hosts' clocks are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from reshard_server.db.clock import clock_of, now_of
from reshard_server.db.conversions import conversions
from reshard_server.db.database import open_database
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import LAYOUT, content_then
from reshard_server.schemas.conversion import (
    OneTarget,
    SeveralTargets,
)
from reshard_server.settings import Settings

from tests.server.by_state import of_states
from tests.server.postgres import Postgres

SKEW_SECONDS = 5.0
PAUSE_SECONDS = 60.0
"""Between two looks at a clock, a machine that is busy may take some of these."""


@pytest.fixture
def db(tmp_path: Path, postgres: Postgres) -> Iterator[sa.Engine]:
    engine = open_database(Settings(state=tmp_path, database_url=postgres.new_database()))
    yield engine
    engine.dispose()


def skew(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Sets this host's clock wrong."""
    right = time.time
    patch.setattr(time, "time", lambda: right() + seconds)


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_it_goes_with_the_database(
    db: sa.Engine, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    skew(monkeypatch, seconds)
    with db.connect() as connection:
        for _ in range(3):
            there = connection.execute(sa.select(now_of(db))).scalar_one()
            assert abs(clock_of(connection).now() - there) < PAUSE_SECONDS
        assert clock_of(connection) is clock_of(db)


def test_sqlite_has_the_clock_of_its_host(tmp_path: Path) -> None:
    engine = open_database(Settings(state=tmp_path))
    assert abs(clock_of(engine).now() - time.time()) < PAUSE_SECONDS
    engine.dispose()


def test_the_queue_is_in_the_order_of_asking(
    db: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas, one of them five seconds ahead."""
    asked = []
    for number in range(4):
        with monkeypatch.context() as patch:
            skew(patch, SKEW_SECONDS if number % 2 == 0 else 0.0)
            request = OneTarget(source="data/a", target=f"data/{number}")
            asked.append(conversions.create(db, token="ann", request=request).id)
    assert [one.id for one in of_states(db, ["queued"])] == asked


def stored(db: sa.Engine, size: int) -> None:
    content = {"mesh": {"axes": ["model"], "shape": [size]}, "rules": []}
    versions.put(
        db, LAYOUT, "serving", content, token="ann", is_admin=False, expected=lambda _: True
    )


@pytest.mark.parametrize("seconds", [-SKEW_SECONDS, SKEW_SECONDS])
def test_the_layout_that_is_shown_is_the_layout_that_is_used(
    db: sa.Engine, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    stored(db, 2)
    with monkeypatch.context() as patch:
        skew(patch, seconds)
        stored(db, 4)
    first = OneTarget(source="data/a", target="data/b", layout="serving")
    old = first.model_copy(update={"target": "data/c", "layout": "serving@1"})
    one = conversions.create(db, token="ann", request=first)
    two = conversions.create(db, token="ann", request=old)
    several = SeveralTargets.model_validate(
        {
            "source": "data/a",
            "targets": [{"target": "data/d", "layout": "serving"}, {"target": "data/e"}],
        }
    )
    three = conversions.create(db, token="ann", request=several)
    stored(db, 8)
    assert one.request.model_dump()["layout"] == "serving@2"
    assert two.request.model_dump()["layout"] == "serving@1"
    assert [target["layout"] for target in three.request.model_dump()["targets"]] == [
        "serving@2",
        None,
    ]
    used = content_then(db, LAYOUT, "serving@2", as_of=0.0)
    assert used["mesh"]["shape"] == [4]


def test_a_name_that_stands_for_nothing_stays(db: sa.Engine) -> None:
    request = OneTarget(source="data/a", target="data/b", layout="none")
    made = conversions.create(db, token="ann", request=request)
    assert made.request.model_dump()["layout"] == "none"
