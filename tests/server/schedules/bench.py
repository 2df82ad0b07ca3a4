"""Schedules without a server: tests are the clock, and they end conversions as they like."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import TypeAdapter
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import Tokens
from reshard_server.db.conversions import claims, conversions, executors
from reshard_server.db.database import open_database
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.schedules.check_schedule import check_schedule, first_look
from reshard_server.schedules.clean_up import recover, settle
from reshard_server.schedules.loop import due, look
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schemas.conversion import (
    Conversion,
    targets_of,
)
from reshard_server.schemas.schedule import ScheduleBody, ScheduleRun
from reshard_server.settings import Settings

from tests.server.claimed import claimed
from tests.server.records import put_records
from tests.server.tokens import token_settings

BODY: TypeAdapter[ScheduleBody] = TypeAdapter(ScheduleBody)
STEPS = {
    "when": {"directory": "data/run", "poll_seconds": 0.2},
    "targets": [{"target": "data/out/{step}"}],
}


@dataclass
class Bench:
    """A database, two roots, and any number of processes that look after the schedules."""

    folder: Path
    url: str = ""
    wakes: int = 0
    engines: list[sa.Engine] = field(default_factory=list)
    now: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        for name in ("data", "other"):
            (self.folder / name).mkdir(parents=True)
        if not self.url:
            put_records(self.folder)
        self.one = self.process("one")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def db(self) -> sa.Engine:
        return self.one.database

    def process(self, executor: str, **settings: Any) -> Scheduling:
        """One more process, with its own connections, that was heard of just now."""
        roots = {name: self.folder / name for name in ("data", "other")}
        given = {"state": self.folder, "database_url": self.url or None, "roots": roots}
        given |= {
            "lease_seconds": 3600,
            **settings,
        }  # nobody beats, so that it lasts for the whole test
        chosen = Settings.model_validate({"tokens": token_settings(), **given})
        database = open_database(chosen)
        self.engines.append(database)
        executors.beat(database, executor)
        return Scheduling(
            chosen, database, Tokens(chosen.tokens), Roots.of(chosen.roots), executor, self._wake
        )

    def without_tokens(self, *names: str, **changes: Any) -> Scheduling:
        """The first process, as it is after a restart with fewer or other tokens."""
        left = [t for t in self.one.tokens.settings if t.name not in names]
        left = [t.model_copy(update=changes.get(t.name, {})) for t in left]
        return replace(self.one, tokens=Tokens(tuple(left)))

    def put(
        self, name: str = "s", token: str = "ann", now: float | None = None, **body: Any
    ) -> StoredSchedule:
        """A schedule, stored as the API stores it."""
        at = self.now if now is None else now
        made = BODY.validate_python({**STEPS, **body})
        caller = self.one.tokens.named(token)
        assert caller is not None
        check_schedule(self.one, caller, name, made, at)
        before = schedules.get(self.db, name)
        if before is None:
            stored = schedules.create(self.db, name, token, made, first_look(made, at))
        else:
            stored = schedules.replace(self.db, before, made, first_look(made, at))
        assert stored is not None
        return stored

    def get(self, name: str = "s") -> StoredSchedule:
        found = schedules.get(self.db, name)
        assert found is not None
        return found

    def tick(self, now: float | None = None, process: Scheduling | None = None) -> None:
        """One look at everything at the given time; by default a second after the last one."""
        self.now += 1
        chosen, at = process or self.one, self.now if now is None else now
        for stored in due(chosen, at):
            look(chosen, stored, at)

    def settle(self, process: Scheduling | None = None) -> None:
        recover(process or self.one)
        settle(process or self.one)

    def runs(self, name: str = "s") -> list[ScheduleRun]:
        """The history, oldest first."""
        return schedule_runs.page(self.db, name, 200, None).runs[::-1]

    def told(self, name: str = "s") -> dict[str, str]:
        """Each run's outcome by its key."""
        return {run.key: run.outcome for run in self.runs(name)}

    def conversion(self, key: str, name: str = "s") -> Conversion:
        run = schedule_runs.get(self.db, name, key)
        assert run is not None and run.conversion is not None, run
        found = conversions.get(self.db, run.conversion)
        assert found is not None
        return found

    def end(
        self, key: str, state: Literal["succeeded", "failed"] = "succeeded", name: str = "s"
    ) -> None:
        """Ends the conversion of a run; if it succeeded, its targets are there."""
        found = self.conversion(key, name)
        claim = claimed(self.db, found.id)
        if state == "succeeded":
            for target in targets_of(found.request):
                write_output(self.folder / target.target, found.id)
        assert claims.finish(self.db, claim, state)

    def held(self) -> list[Path]:
        """Every folder of hard links."""
        folder = self.data / ".reshard-held"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def close(self) -> None:
        for engine in self.engines:
            engine.dispose()

    def _wake(self) -> None:
        self.wakes += 1


def write_output(folder: Path, content: str) -> None:
    """What a conversion leaves, as far as retention looks at it."""
    if folder.name.endswith(".weights.h5"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text(content)
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "slices.json").write_text(content)
    (folder / "chunk").write_bytes(b"x" * 100)


def write_step(directory: Path, step: int | str, content: bytes = b"weights") -> Path:
    """A committed step, as Orbax leaves it: grown in a temporary folder, and renamed."""
    growing = directory / f"{step}.orbax-checkpoint-tmp"
    (growing / "state" / "d").mkdir(parents=True)
    (growing / "state" / "d" / "0").write_bytes(content)
    (growing / "state" / "_METADATA").write_text("{}")
    (growing / "_CHECKPOINT_METADATA").write_text("{}")
    (growing / "commit_success.txt").write_text("done")
    return growing.rename(directory / str(step))
