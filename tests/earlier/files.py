"""What an earlier version wrote, which later ones must read: checkpoints, an interrupted run, a service's records.

``checkpoints.tgz`` has ``source``, saved by ``reshard.save``; ``orbax`` and ``ranks``, converted from it, with slice
metadata of version 1; and what a conversion to ``interrupted`` left that was killed after four tasks. ``records.sql`` has the
records of a service. ``make.py`` made both.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from reshard_server.db.database import sqlite_module

ARCHIVE = Path(__file__).parent / "checkpoints.tgz"
DUMP = Path(__file__).parent / "records.sql"

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [2]},
    "rules": [{"match": "rows", "axes": ["x"]}, {"match": "columns", "axes": [None, "x"]}],
}
LIMITS: dict[str, Any] = {"max_memory": "64MiB", "workers": 1}

STAGED = ".interrupted.reshard-partial"
"""The folder that the killed run left."""


def tree() -> dict[str, Any]:
    """What ``source`` holds."""
    rows = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    layers = {
        f"layer_{n}": {"rows": rows + n, "columns": rows.T.astype(np.float16) * n} for n in range(6)
    }
    return {"params": layers, "step": np.int32(7), "note": "as it was", "none": None}


def unpack(folder: Path) -> Path:
    """The checkpoints below a folder, and the interrupted run as if it had been made there."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    staged = folder / STAGED
    journal = staged / "journal"
    first, rest = journal.read_bytes().split(b"\n", 1)
    header = json.loads(first[9:])
    # The source has another path here and the folder another inode; and the host was started anew since, wherever this runs.
    header["identity"]["source"] = str((folder / "source").resolve())
    header["root"] = (staged / "checkpoint").stat().st_ino
    header["boot"] = "another boot"
    line = json.dumps(header, sort_keys=True).encode()
    journal.write_bytes(b"%08x %s\n" % (zlib.crc32(line), line) + rest)
    return folder


def load_records(state: Path) -> None:
    """Makes ``records.sqlite`` in a state folder."""
    state.mkdir(parents=True)
    connection = sqlite_module().connect(state / "records.sqlite")
    connection.executescript(DUMP.read_text("utf-8"))
    connection.close()
