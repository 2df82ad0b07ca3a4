"""Hosts of one service: ``reshard serve`` and ``reshard work`` on one database, that can be killed; and conversions in parts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from reshard_server.db.conversions import conversions
from reshard_server.db.database import open_database
from reshard_server.db.tables import CONVERSIONS, ENDED_TOTALS
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
)
from reshard_server.settings import Settings

import reshard
from tests.server.forked import WAITS, Forked
from tests.server.jobs.world import SHORTER
from tests.server.live import PATIENCE_SECONDS, environment, settings_file

READY = {"serve": "listens on", "work": "reshard works"}


@dataclass
class Hosts:
    """The processes, their database (SQLite without a URL), and their root ``data`` with a small checkpoint."""

    folder: Path
    url: str = ""
    processes: list[Forked] = field(default_factory=list)

    def __post_init__(self) -> None:
        tree = {f"w{n:02}": np.arange(256, dtype=np.float32) + n for n in range(16)}
        reshard.save(self.folder / "data" / "source", tree)
        self.state = self.folder / "state"
        self.state.mkdir()
        self.db: sa.Engine = open_database(
            Settings(state=self.state, database_url=self.url or None)
        )

    def start(
        self, command: str = "work", url: str = "", labels: str = "{}", **settings: Any
    ) -> Forked:
        """Starts a host, and waits until it works; its labels as JSON."""
        own = self.folder / f"host{len(self.processes)}"
        own.mkdir()
        url = url or self.url
        settings = {"lease_seconds": 3, **settings, **({"database_url": url} if url else {})}
        words: list[object] = ["reshard", command, "--root", f"data={self.folder / 'data'}"]
        words += [
            "--state",
            own if url else self.state,
            "--settings",
            settings_file(own, **settings),
        ]
        log = own / "log"
        log.touch()
        env = {**environment(), WAITS: json.dumps(SHORTER), "RESHARD_LABELS": labels}
        more = ["--port", 0] if command == "serve" else []
        process = Forked([*words, *more], env, self.folder, log, log)
        self.processes.append(process)
        wait_until(lambda: READY[command] in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process

    def convert(self, target: str, **more: Any) -> str:
        """A queued conversion; its id."""
        request = OneTarget(source="data/source", target=f"data/{target}", **more)
        return conversions.create(self.db, token="ann", request=request).id

    def read(self, conversion: str) -> Conversion:
        found = conversions.get(self.db, conversion)
        assert found is not None
        return found

    def ended(self, conversion: str) -> Conversion:
        """The conversion, once it has ended."""
        wait_until(lambda: self.read(conversion).done, self._logs)
        return self.read(conversion)

    def assert_done_once(self, jobs: Sequence[str], targets: Sequence[str]) -> None:
        """Each conversion succeeded and was counted once, each target is right, and nothing is left."""
        found = [self.ended(job) for job in jobs]
        assert [one.error for one in found] == [None] * len(jobs)
        assert {one.state for one in found} == {"succeeded"}
        with self.db.connect() as connection:
            total = connection.scalar(sa.select(sa.func.sum(ENDED_TOTALS.c.conversions)))
            held = sa.select(sa.func.count()).where(CONVERSIONS.c.claim.is_not(None))
            assert (total, connection.scalar(held)) == (len(jobs), 0)
        for target in targets:
            assert reshard.verify(
                self.folder / "data" / "source", self.folder / "data" / target
            ).equal
        left = {path.name for path in (self.folder / "data").iterdir()}
        assert left == {"source", *targets}

    def _logs(self) -> str:
        return "\n".join(log.read_text()[-3000:] for log in sorted(self.folder.glob("host*/log")))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE_SECONDS)
        self.db.dispose()


def wait_until(holds: Callable[[], Any], say: Callable[[], str] = str) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if holds():
                return
        except sa.exc.SQLAlchemyError:  # the database is being started anew
            pass
        assert time.monotonic() < deadline, say()
        time.sleep(0.02)
