"""Writers of one process take turns, in the order of asking."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from reshard_server.db.connections import OneWriterEngine, Turns
from reshard_server.db.database import open_database
from reshard_server.settings import Settings

PATIENCE_SECONDS = 120


def _until_waiting(turns: Turns, number: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(turns._waiting) < number:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_turns_are_handed_on_in_the_order_of_asking() -> None:
    turns, had = Turns(), []

    def take(number: int) -> None:
        with turns.turn():
            had.append(number)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(20)]
    with turns.turn():
        for number, thread in enumerate(threads):
            thread.start()
            _until_waiting(turns, number + 1)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert had == list(range(20))


def test_a_turn_that_fails_is_handed_on() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="x"), turns.turn():
        raise ValueError("x")
    with turns.turn():
        assert not turns._waiting


def test_sqlite_is_written_by_one_at_a_time_and_read_meanwhile(tmp_path: Path) -> None:
    db = open_database(Settings(state=tmp_path))
    assert isinstance(db, OneWriterEngine)
    wrote = threading.Event()

    def write() -> None:
        with db.begin() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO executors (id, host, pid, heartbeat_at) VALUES ('b', 'host', 1, 0)"
                )
            )
        wrote.set()

    with db.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO executors (id, host, pid, heartbeat_at) VALUES ('a', 'host', 1, 0)"
            )
        )
        thread = threading.Thread(target=write)
        thread.start()
        _until_waiting(db._turns, 1)
        with db.connect() as reading:
            assert reading.scalar(sa.text("SELECT count(*) FROM executors")) == 0
        assert not wrote.is_set()
    thread.join(PATIENCE_SECONDS)
    with db.connect() as reading:
        assert reading.scalar(sa.text("SELECT count(*) FROM executors")) == 2
    db.dispose()
