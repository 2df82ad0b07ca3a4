"""Records that version 0.1.0 left, with ended, running, queued and scheduled work, as dumps of both databases.

Made by a server of that version: two versions of the layout 'serving', conversions that ended, a schedule of each
kind, one conversion that runs and two that wait; then the server was killed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psycopg
from reshard_server.db.database import sqlite_module

import reshard

DUMPS = Path(__file__).parent / "dumps"
VERSION = "0.1.0"


def load_sqlite(state: Path) -> None:
    """Makes ``records.sqlite`` in a state folder."""
    state.mkdir(parents=True, exist_ok=True)
    connection = sqlite_module().connect(state / "records.sqlite")
    connection.executescript((DUMPS / f"sqlite-{VERSION}.sql").read_text())
    connection.close()


def load_postgres(url: str) -> None:
    """Fills an empty database."""
    with psycopg.connect(url) as connection:
        connection.execute((DUMPS / f"postgres-{VERSION}.sql").read_bytes())


def make_sources(data: Path) -> None:
    """The checkpoints that the records name."""
    tree = {
        "params": {
            "kernel": np.arange(64 * 32, dtype=np.float32).reshape(64, 32),
            "bias": np.arange(6, dtype=np.float32),
        },
        "step": np.int32(7),
    }
    for step in (1, 2):
        reshard.save(data / "run" / str(step), tree)
    reshard.save(data / "large", {"w": np.arange(40 * 64, dtype=np.uint8).reshape(40, 64)})
