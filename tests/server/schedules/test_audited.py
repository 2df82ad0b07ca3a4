"""What schedules do by themselves is in the audit log, in the name of the token whose rights they use."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from reshard_server.observability.logs import NAME

from tests.server.schedules.bench import Bench, write_step


@pytest.fixture
def run(bench: Bench, caplog: pytest.LogCaptureFixture) -> Path:
    caplog.set_level(logging.INFO, NAME)
    folder = bench.data / "run"
    folder.mkdir()
    return folder


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [vars(record) for record in caplog.records if record.name == NAME]
    caplog.clear()
    return [{"event": f["message"], **{k: f.get(k) for k in ("caller", "resource", "targets", "conversion")}}
            for f in found]  # fmt: skip


def line(event: str, targets: list[str] | None, conversion: str | None) -> dict[str, Any]:
    where = {"caller": "ann", "resource": "/v1/schedules/s"}
    return {"event": event, **where, "targets": targets, "conversion": conversion}


def test_what_it_starts_and_what_it_removes(
    bench: Bench, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.put(keep=1)
    for step in (1, 2):
        write_step(run, step)
        bench.tick()
        bench.end(str(step))
        bench.settle()
    first, second = (bench.conversion(str(step)).id for step in (1, 2))
    assert told(caplog) == [
        line("scheduled", ["data/out/1"], first),
        line("scheduled", ["data/out/2"], second),
        line("removed", ["data/out/1"], None),
    ]


def test_that_it_pauses_itself(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    bench.put()
    bench.tick(process=bench.without_tokens("ann"))
    assert told(caplog) == [line("paused", None, None)]
