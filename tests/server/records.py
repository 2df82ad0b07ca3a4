"""Empty records in SQLite, copied: to migrate them takes longer than most tests."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from reshard_server.db.database import open_database
from reshard_server.settings import Settings


def put_records(state: Path) -> None:
    """Puts empty records into a state folder that has none."""
    state.mkdir(0o700, parents=True, exist_ok=True)
    file = state / "records.sqlite"
    if not file.exists():
        file.write_bytes(_migrated())


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        open_database(Settings(state=folder)).dispose()
        return (Path(folder) / "records.sqlite").read_bytes()
