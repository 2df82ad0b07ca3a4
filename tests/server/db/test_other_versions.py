"""Records that a newer version wrote are shown, kept, and left to servers of that version."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.database import open_database
from reshard_server.db.documents import UnreadableError, unknown_members
from reshard_server.db.schedules import schedules
from reshard_server.schemas.conversion import OneTarget
from reshard_server.schemas.schedule import Clock, ScheduleBody
from reshard_server.settings import Settings

import reshard
from tests.server.by_state import of_states
from tests.server.jobs.world import World
from tests.server.live import live

TARGET = {"target": "data/out"}


def make_source(data: Path) -> None:
    """The checkpoint that the records name."""
    reshard.save(data / "run" / "1", {"kernel": np.arange(12, dtype=np.float32)})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_database(Settings(state=tmp_path))
    yield engine
    engine.dispose()


def made(db: sa.Engine, target: str, **members: Any) -> str:
    """A queued conversion with further members in its record; its id."""
    request = OneTarget(source="data/run/1", target=target)
    found = conversions.create(db, token="ann", request=request).id
    change_request(db, found, **members)
    return found


def change_request(db: sa.Engine, conversion: str, **members: Any) -> None:
    document = {**recorded(db, conversion), **members}
    with db.begin() as connection:
        connection.execute(
            sa.text("UPDATE conversions SET request = :request WHERE id = :id"),
            {"request": json.dumps(document), "id": conversion},
        )


def recorded(db: sa.Engine, conversion: str) -> dict[str, Any]:
    with db.connect() as connection:
        query = sa.text("SELECT request FROM conversions WHERE id = :id")
        return dict(json.loads(connection.execute(query, {"id": conversion}).scalar_one()))


def test_what_was_not_asked_for_is_not_recorded(db: sa.Engine) -> None:
    request = OneTarget(source="data/a", target="data/b", select=("x",), labels={"k": "v"})
    found = conversions.create(db, token="ann", request=request)
    assert recorded(db, found.id) == {
        "source": "data/a", "target": "data/b", "select": ["x"], "labels": {"k": "v"},
    }  # fmt: skip
    again = conversions.get(db, found.id)
    assert again is not None and again.request == request


def test_members_that_are_not_known_are_kept(db: sa.Engine) -> None:
    newer = made(db, "data/b", colour="red", targets=[{**TARGET, "shape": {"of": 1}}])
    found = conversions.get(db, newer)
    assert found is not None
    assert unknown_members(found.request) == ["target", "colour", "targets.0.shape"]
    assert "colour" not in found.model_dump()["request"]
    conversions.request_cancel(db, newer)
    conversions.requeue(db, newer)
    assert recorded(db, newer)["colour"] == "red"


@pytest.mark.parametrize(
    "members", [{"source": 7}, {"verify": "by a notary"}, {"priority": "high"}]
)
def test_a_record_that_cannot_be_read_breaks_no_listing(
    db: sa.Engine, members: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    first, bad, last = (made(db, f"data/{name}") for name in ("a", "b", "c"))
    change_request(db, bad, **members)
    with caplog.at_level("WARNING"):
        listed = conversions.page(db, Filters(), 2)
    assert [one.id for one in listed.conversions] == [last]
    assert listed.next_page_token is not None
    rest = conversions.page(db, Filters(), 2, listed.next_page_token)
    assert [one.id for one in rest.conversions] == [first]
    said = (
        f"the conversion {bad} was recorded by another version of the server, and this one cannot read it; ask a "
        "server of the version that recorded it"
    )
    assert f"left out of a listing: {said}" in caplog.text
    with pytest.raises(UnreadableError) as raised:
        conversions.get(db, bad)
    assert raised.value.detail == said


def test_a_state_of_another_version(db: sa.Engine) -> None:
    strange = made(db, "data/a")
    with db.begin() as connection:
        connection.execute(sa.text("UPDATE conversions SET state = 'waiting'"))
    assert conversions.page(db, Filters(), 10).conversions == []
    with pytest.raises(UnreadableError):
        conversions.get(db, strange)


def test_a_schedule_of_another_version_is_left_alone(db: sa.Engine) -> None:
    for name in ("known", "newer", "unreadable"):
        clock = Clock(cron="* * * * *", source="data/run/1")
        body = ScheduleBody.model_validate({"when": clock, "targets": [TARGET]})
        assert schedules.create(db, name, "ann", body, next_at=0.0)
    changes = {"newer": {"when": {"cron": "* * * * *", "source": "data/run/1", "zone": "CET"}}}
    changes["unreadable"] = {"when": {"moon": "full"}}
    with db.begin() as connection:
        for name, members in changes.items():
            document = json.dumps({"targets": [TARGET], **members})
            update = sa.text("UPDATE schedules SET schedule = :document WHERE name = :name")
            connection.execute(update, {"document": document, "name": name})
    assert [stored.name for stored in schedules.due(db, time.time())] == ["known"]
    told, _ = schedules.page(db, None, 10, None)
    assert [stored.name for stored in told] == ["known", "newer"]
    with pytest.raises(UnreadableError, match="the schedule 'unreadable' was recorded by another"):
        schedules.get(db, "unreadable")


def test_work_of_another_version_waits_for_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    make_source(tmp_path / "data")
    newer, unreadable, known = (made(world.db, f"data/{name}") for name in ("a", "b", "c"))
    change_request(world.db, newer, colour="red")
    change_request(world.db, unreadable, verify="by a notary")
    try:
        replica = world.start(running=1)
        assert world.ended(known).state == "succeeded"
        log = replica.log.read_text()
        assert "left to a server of another version: this version does not know colour" in log
        assert f"left to a server of another version: the conversion {unreadable} was rec" in log
        change_request(world.db, unreadable, verify="readback")  # the newer version's retry
        left = of_states(world.db, ["queued"])
        assert {one.id for one in left} == {newer, unreadable}
    finally:
        world.close()


def test_clients_are_told_who_can_read_it(tmp_path: Path) -> None:
    make_source(tmp_path / "data")
    with live(tmp_path, running=1) as server, server.client() as client:
        db = open_database(Settings(state=tmp_path / "state"))
        bad = made(db, "data/a", verify="by a notary")
        answer = client.get(f"/v1/conversions/{bad}")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:reshard:problem:conflict")
        assert client.get("/v1/conversions").json()["conversions"] == []
        db.dispose()
