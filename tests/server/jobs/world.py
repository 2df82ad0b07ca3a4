"""A folder of checkpoints, a database, and servers on it that can be killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from reshard_server.db.conversions import conversions
from reshard_server.db.database import open_database
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
)
from reshard_server.settings import Settings

import reshard
from tests.server.forked import HOLD, WAITS, Forked
from tests.server.records import put_records

PATIENCE_SECONDS = 120.0
"""Far more than a process needs to end, on a machine that is busy."""

REPLICA = "tests.server.jobs.replica"
ATTEMPT = "reshard_server.jobs.attempt"
SHORTER = {f"{ATTEMPT}.LOOK_SECONDS": 0.05, f"{ATTEMPT}.LISTEN_SECONDS": 0.05}


@dataclass
class Replica:
    """A server process."""

    process: Forked
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def end(self) -> int:
        """In good order."""
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)

    def children(self) -> list[int]:
        """Its conversions' processes."""
        return children_of(self.pid)


@dataclass
class World:
    """Everything one test needs; ``url`` is empty for SQLite."""

    folder: Path
    url: str = ""
    replicas: list[Replica] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.url:
            put_records(self.folder)
        self.db: sa.Engine = open_database(
            Settings(state=self.folder, database_url=self.url or None)
        )

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(
        self,
        *,
        skew_seconds: float = 0.0,
        waits: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> Replica:
        """Starts a server, whose clock may go wrong, and waits until it works; ``waits`` are constants of its modules."""
        number = len(self.replicas)
        log, ready = self.folder / f"log{number}", self.folder / f"ready{number}"
        words = [REPLICA, self.folder, self.data, self.url, json.dumps(options)]
        env = {
            **os.environ,
            "SKEW_SECONDS": str(skew_seconds),
            WAITS: json.dumps({**SHORTER, **waits}),
        }
        replica = Replica(Forked(words, env, self.folder, ready, log), log)
        self.replicas.append(replica)
        while not ready.exists() or ready.read_text() != "ready\n":
            assert replica.process.poll() is None, log.read_text()
            time.sleep(0.02)
        return replica

    def convert(self, target: str = "out", token: str = "ann", **more: Any) -> str:
        """A queued conversion; its id."""
        request = OneTarget(source="data/source", target=f"data/{target}", **more)
        return conversions.create(self.db, token=token, request=request).id

    def held(self, **more: Any) -> str:
        """A conversion of which half of the bytes have moved, and no more until it is let go; its id."""
        (self.folder / HOLD).touch()
        job = self.convert(workers=1, **more)
        self.wait_for(job, is_half_moved)
        return job

    def let_go(self) -> None:
        """Lets what was stopped go on."""
        (self.folder / HOLD).unlink(missing_ok=True)

    def get(self, conversion: str) -> Conversion:
        found = conversions.get(self.db, conversion)
        assert found is not None
        return found

    def wait_for(
        self, conversion: str, holds: Callable[[Conversion], bool], seconds: float = 300
    ) -> Conversion:
        """The conversion, as soon as it meets a condition."""
        deadline = time.monotonic() + seconds
        while not holds(found := self.get(conversion)):
            assert time.monotonic() < deadline, (found, [r.log.read_text() for r in self.replicas])
            time.sleep(0.02)
        return found

    def ended(self, conversion: str, seconds: float = 300) -> Conversion:
        return self.wait_for(conversion, lambda c: c.done, seconds)

    def resumed(self, conversion: str) -> Conversion:
        """A conversion that has succeeded after it was let go and resumed, and whose target is right."""
        self.let_go()
        found = self.ended(conversion)
        assert found.state == "succeeded", found.error
        assert found.progress is not None and found.progress.resumed_bytes > 0
        assert self.is_equal()
        return found

    def is_equal(self, target: str = "out") -> bool:
        """Whether the target has the source's bits."""
        found = reshard.verify(self.data / "source", self.data / target)
        return not found.differences and all(t.status == "equal" for t in found.tensors)

    def close(self) -> None:
        for replica in self.replicas:
            if replica.process.poll() is None:
                replica.process.send_signal(signal.SIGCONT)
                replica.kill()
        self.db.dispose()


def is_half_moved(found: Conversion) -> bool:
    """True once half of the bytes have moved; an end that came before is a failure of the test."""
    assert not found.done, found
    at = found.progress
    return at is not None and 2 * at.moved_bytes >= at.total_bytes


def children_of(pid: int) -> list[int]:
    """Processes that convert or answer for this one, by /proc: forks of its template."""
    return [child for template in templates_of(pid) for child in _started_by(template)]


def templates_of(pid: int) -> list[int]:
    """The process that forks children for this one."""
    return _started_by(pid)


def _started_by(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
        except OSError:
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        if int(parent) == pid and state != "Z":
            found.append(int(status.parent.name))
    return found


def is_gone(pid: int, seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether a process ends within this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False
