"""Writes the files of this folder: ``python -m tests.earlier.make``.

What is here was made once, by the version that its records name, and is not made again: later versions must read it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from reshard_server.db.conversions import claims, conversions
from reshard_server.db.database import open_database
from reshard_server.schemas.conversion import OneTarget
from reshard_server.settings import Settings

import reshard
from tests.earlier.files import ARCHIVE, DUMP, LAYOUT, LIMITS, STAGED, tree
from tests.server.claimed import begun

_KILLED = """
import os, signal, reshard
from reshard.engine import task_stream
from tests.earlier.files import LAYOUT, LIMITS
task_stream.BATCH_TASKS = 1
def kill(progress):
    if progress.tasks_done == 5:
        os.kill(os.getpid(), signal.SIGKILL)
reshard.convert("source", "interrupted", layout=LAYOUT, **LIMITS, progress=kill)
"""


def make_checkpoints(folder: Path) -> None:
    """The source, a target of each format, and what a killed run leaves, as an archive."""
    os.chdir(folder)
    reshard.save("source", tree())
    for path in Path("source").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # an archive keeps whole seconds only
    reshard.convert("source", "orbax", layout=LAYOUT, **LIMITS)
    reshard.convert(
        "source", "ranks", layout=LAYOUT, **LIMITS, drop=["^no"], to="safetensors", files="ranks"
    )
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    killed = subprocess.run([sys.executable, "-c", _KILLED], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    with tarfile.open(ARCHIVE, "w:gz", compresslevel=9) as archive:
        for name in ("source", "orbax", "ranks", STAGED):
            archive.add(name)


def make_records(state: Path) -> None:
    """A service's records: a conversion that succeeded, one that failed and two that wait, as a dump of SQLite."""
    db = open_database(Settings(state=state))
    made = [
        conversions.create(db, token="ann", request=OneTarget(source="data/source", target=target))
        for target in ("data/succeeded", "data/failed", "data/first", "data/second")
    ]
    report = reshard.convert("source", "succeeded", layout=LAYOUT, **LIMITS).to_dict()
    assert claims.finish(db, begun(db, made[0].id), "succeeded", result=[report])
    assert claims.finish(db, begun(db, made[1].id), "failed")
    db.dispose()
    connection = sqlite3.connect(state / "records.sqlite")
    DUMP.write_text("\n".join(connection.iterdump()) + "\n", "utf-8")
    connection.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        make_checkpoints(Path(made))
        (Path(made) / "state").mkdir()
        make_records(Path(made) / "state")
