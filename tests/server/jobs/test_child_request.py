"""The child's document: within the ceilings, with real paths and the layout of the time of the request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import conversions
from reshard_server.db.database import open_database
from reshard_server.db.tables import LAYOUTS
from reshard_server.jobs.conversion_job import make_child_request
from reshard_server.schemas.conversion import OneTarget
from reshard_server.settings import MIB, Settings

from reshard.errors import LayoutError
from tests.server.jobs.replica import OneRoot

ROOTS = OneRoot(Path("/store"))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_database(Settings(state=tmp_path))
    yield engine
    engine.dispose()


def document(db: sa.Engine, *, begun: bool = False, **options: Any) -> dict[str, Any]:
    request = OneTarget(source="data/a", target="data/b", **options)
    made = conversions.create(db, token="ann", request=request)
    settings = Settings(max_memory=64 * MIB, workers=4)
    return make_child_request(db, settings, ROOTS, made, begun=begun)


def store(db: sa.Engine, version: int, at: float, *, deleted: bool = False) -> None:
    row = {"name": "serving", "version": version, "layout": {"v": version}, "token": "ann"}
    with db.begin() as connection:
        connection.execute(LAYOUTS.insert().values(**row, created_at=at, deleted=deleted))


def test_paths_are_real_ones(db: sa.Engine) -> None:
    found = document(db)
    assert found["source"] == "/store/a"
    assert found["targets"][0]["target"] == "/store/b"


@pytest.mark.parametrize(
    ("options", "max_memory", "workers"),
    [
        ({}, 64 * MIB, 4),
        ({"max_memory": "32MiB", "workers": 2}, 32 * MIB, 2),
        ({"max_memory": 16 * MIB}, 16 * MIB, 4),
        ({"max_memory": "1TiB", "workers": 200}, 64 * MIB, 4),
    ],
)
def test_no_request_gets_more_than_the_ceiling(
    db: sa.Engine, options: dict[str, Any], max_memory: int, workers: int
) -> None:
    found = document(db, **options)
    assert (found["max_memory"], found["workers"]) == (max_memory, workers)
    assert found["data_bytes"] > max_memory


def test_starting_over_is_for_the_first_attempt(db: sa.Engine) -> None:
    assert document(db, restart=True)["targets"][0]["restart"] is True
    assert document(db, restart=True, begun=True)["targets"][0]["restart"] is False


def test_a_layouts_name_is_pinned_to_the_version_that_is_newest(db: sa.Engine) -> None:
    """Whatever the clock of the host was that stored it."""
    now = time.time()
    store(db, 1, now - 20)
    store(db, 2, now + 5)
    assert document(db, layout="serving")["targets"][0]["layout"] == {"v": 2}
    assert document(db, layout="serving@1")["targets"][0]["layout"] == {"v": 1}
    content = {"mesh": {"axes": ["x"], "shape": [2]}}
    assert document(db, layout=content)["targets"][0]["layout"] == content


def test_a_name_in_an_old_record_stands_for_what_it_was_when_it_was_asked_for(
    db: sa.Engine,
) -> None:
    request = OneTarget(source="data/a", target="data/b", layout="serving")
    made = conversions.create(db, token="ann", request=request)  # nothing is stored to be pinned
    now = made.created_at.timestamp()
    store(db, 1, now - 20)
    store(db, 2, now - 10, deleted=True)
    store(db, 3, now + 1000)
    found = make_child_request(db, Settings(), ROOTS, made, begun=False)
    assert found["targets"][0]["layout"] == {"v": 2}


@pytest.mark.parametrize("name", ["serving", "serving@9", "serving@x", "/etc/passwd"])
def test_a_layout_that_is_not_stored_is_refused_and_never_a_path(db: sa.Engine, name: str) -> None:
    with pytest.raises(LayoutError, match="is not stored; store it, or give the layout's content"):
        document(db, layout=name)
