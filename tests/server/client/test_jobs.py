"""``reshard jobs``: conversions of a real server listed, shown, cancelled and queued again; what is refused, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.client import Client
from reshard_server.db.conversions import claims
from reshard_server.db.conversions.claims import Claim
from reshard_server.db.conversions.executors import Host
from reshard_server.db.conversions.parts import Split
from reshard_server.db.database import open_database
from reshard_server.schemas.conversion import ProgressState
from reshard_server.settings import Settings

import reshard
from reshard.cli.app import run
from tests.ports import kept_port
from tests.server.claimed import begun
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

ANN = TOKENS["ann"][0]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that carries nothing out, so that tests choose what becomes of its conversions."""
    folder = tmp_path_factory.mktemp("idle")
    with live(folder, module="tests.server.idle", requests_per_minute=10**6) as server:
        yield server


@pytest.fixture
def asked(idle: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The variables name the server and a token; a client of the same."""
    monkeypatch.setenv("RESHARD_SERVER", idle.url)
    monkeypatch.setenv("RESHARD_TOKEN", ANN)
    monkeypatch.setenv("COLUMNS", "80")
    with Client(idle.url, ANN) as client:
        yield client
        for one in client.conversions.each():
            if not one.done:
                client.conversions.get(one.id).cancel()
            client.conversions.delete(one.id)


@pytest.fixture
def database(idle: Live) -> Iterator[sa.Engine]:
    engine = open_database(Settings(state=idle.log.parent / "state"))
    yield engine
    engine.dispose()


def told(capsys: Capture, *words: str, code: int = 0) -> str:
    """What a command prints; on stderr where it fails."""
    assert run(["jobs", *words]) == code
    out, err = capsys.readouterr()
    return " ".join((err if code else out).split())


def document(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run(["jobs", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_list_fits_80_columns_and_cuts_no_name(asked: Client, capsys: Capture) -> None:
    long = "data/run/a-name-that-is-longer/than-the-half-of-a-terminal/step-1000"
    first = asked.convert("data/a", "data/b", labels={"run": "7"})
    several = [{"target": "data/c"}, {"target": "data/d", "mesh": "x=2"}]
    second = asked.convert(long, targets=several)
    second.cancel()
    assert run(["jobs", "list"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    at_name = next(n for n, line in enumerate(lines) if line.startswith(long))
    assert max(len(line) for line in lines if not line.startswith((long, "→"))) <= 80
    assert "→ data/c and 1 more" in out
    assert f"{second.id}  cancelled" in out
    assert f"{first.id}  queued" in out
    assert at_name < next(n for n, line in enumerate(lines) if "data/a → data/b" in line)
    assert first.id not in told(capsys, "list", "--state", "cancelled")
    assert second.id not in told(capsys, "list", "--label", "run=7")
    assert told(capsys, "list", "--state", "failed") == "no conversion was found"


def test_a_list_has_the_newest_and_with_all_every_page(asked: Client, capsys: Capture) -> None:
    made = [asked.convert("data/a", f"data/{number}").id for number in range(53)]
    text = told(capsys, "list")
    assert text.endswith("… and older conversions; --all lists each")
    assert (made[-1] in text, made[0] in text) == (True, False)
    found = document(capsys, "list")
    assert (found["command"], found["has_more"], len(found["conversions"])) == (
        "jobs list", True, 50,
    )  # fmt: skip
    found = document(capsys, "list", "--all")
    assert [one["id"] for one in found["conversions"]] == made[::-1]
    assert found["has_more"] is False
    assert [one.id for one in asked.conversions.each(page_size=7)] == made[::-1]


def test_one_is_shown_cancelled_and_queued_again(asked: Client, capsys: Capture) -> None:
    one = asked.convert("data/a", "data/b")
    text = told(capsys, "show", one.id)
    assert text.startswith(f"conversion {one.id}: queued data/a → data/b created ")
    assert text.endswith("by the token ann; 0 attempts")
    assert told(capsys, "cancel", one.id) == (
        f"conversion {one.id} of data/a to data/b: cancelled; the target does not change, and reshard jobs retry resumes it"
    )
    assert asked.conversions.get(one.id).conversion.state == "cancelled"
    assert told(capsys, "retry", one.id) == (
        f"conversion {one.id} of data/a to data/b: is queued again, and resumes where it stopped"
    )
    found = document(capsys, "cancel", one.id)
    assert (found["command"], found["id"], found["state"]) == ("jobs cancel", one.id, "cancelled")
    assert document(capsys, "retry", one.id)["state"] == "queued"
    assert document(capsys, "show", one.id)["request"]["source"] == "data/a"


def test_one_that_runs_stops_and_one_that_failed_says_why(
    asked: Client, database: sa.Engine, capsys: Capture
) -> None:
    one = asked.convert("data/a", "data/b")
    claim = begun(database, one.id)
    assert "1 attempt" in told(capsys, "show", one.id)
    assert "stops within seconds; the target does not change" in told(capsys, "cancel", one.id)
    other = asked.convert("data/a", "data/c")
    error = {"detail": "there is no checkpoint"}
    assert claims.finish(database, begun(database, other.id), "failed", error=error)
    assert told(capsys, "show", other.id).endswith("1 attempt failed: there is no checkpoint")
    assert claims.finish(database, claim, "cancelled")


def test_parts_are_a_table_that_fits_80_columns(
    asked: Client, database: sa.Engine, capsys: Capture
) -> None:
    one = asked.convert("data/a", "data/b", parts=60, host_labels={"disk": "nvme"})
    assert "waits for a host with the label disk=nvme; of the" in told(capsys, "show", one.id)
    host = Host(labels={"disk": "nvme"}, name="node-17.cluster.example")

    def won() -> Claim:
        claim = claims.claim_next(database, "other", claims.new_claim_text(), 99, (), host)
        assert claim is not None and claims.begin_attempt(database, claim)
        return claim

    assert claims.split(database, won(), Split(60, 1000, False, 1 << 30, 2))
    first, second = won(), won()
    at = ProgressState(
        stage="copying", moved_bytes=5, total_bytes=10, tasks_done=1, tasks=2, tensor="w"
    )
    assert claims.set_progress(database, first, at)
    assert claims.finish(database, second, "succeeded", progress=at)
    assert run(["jobs", "show", one.id]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "parts: 58 queued, 1 running, 1 succeeded" in text
    assert "1 running 50% 1 0 node-17.cluster.example" in text
    assert "… and 20 more parts; --all lists each" in text
    assert len(document(capsys, "show", one.id)["parts"]) == 60
    assert document(capsys, "list")["conversions"][0]["parts"] is None
    one.cancel()
    assert claims.finish(database, first, "cancelled")


def test_what_is_refused_says_what_to_do(
    asked: Client, idle: Live, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = asked.convert("data/a", "data/b")
    assert told(capsys, "retry", one.id, code=1) == (
        f"error: conversion {one.id} is queued; only failed and cancelled ones can be retried; reshard jobs show {one.id} "
        "says how it stands"
    )
    for command in ("show", "cancel", "retry"):
        assert told(capsys, command, "no/such:id", code=1) == (
            f"error: the server at {idle.url} has no conversion 'no/such:id' that this token may see; reshard jobs list "
            "shows those that there are"
        )
    assert told(capsys, "show", one.id, "--token-file", str(tmp_path / "none"), code=1).startswith(
        f"error: the token file '{tmp_path}/none' cannot be read"
    )
    monkeypatch.setenv("RESHARD_TOKEN", "rsh_wrong")
    assert told(capsys, "list", code=1) == (
        f"error: the server at {idle.url} expects a token that it knows; give one by --token-file, or in the variable "
        "RESHARD_TOKEN"
    )
    assert told(capsys, "list", "--server", "nowhere", code=1) == (
        "error: the server 'nowhere' is not the URL of a server; expected http://HOST:PORT or https://HOST"
    )
    assert "'finished' is not one of 'queued', 'running'" in told(
        capsys, "list", "--state", "finished", code=2
    )
    monkeypatch.delenv("RESHARD_SERVER")
    for words in (["list"], ["list", "--token-file", "x"], ["show", one.id]):
        assert told(capsys, *words, code=2).startswith(
            "error: no server is named: give its URL by --server, such as http://checkpoints:8080, or in the variable "
            "RESHARD_SERVER see: reshard jobs"
        )


def test_a_server_that_does_not_answer(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard_server.client.transport.FIRST_WAIT_SECONDS", 0)
    with kept_port() as port:
        assert run(["jobs", "list", "--server", f"http://127.0.0.1:{port}", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "UnreachableError"
    assert error["message"].startswith(
        f"the server at http://127.0.0.1:{port} did not answer, or its"
    )
    assert error["message"].endswith("check the URL, and whether it runs")


def test_a_finished_one_shows_its_reports_as_convert_does(
    served: Live, client: Client, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RESHARD_SERVER", served.url)
    (tmp_path / "token").write_text(ANN)
    handle = client.convert("data/run", "data/shown", mesh="x=4", cast={"bias": "float16"})
    (report,) = handle.wait(timeout=120)
    assert run(["jobs", "show", handle.id, "--token-file", str(tmp_path / "token")]) == 0
    shown = capsys.readouterr().out
    assert f"conversion {handle.id}: succeeded\ndata/run → data/shown\n" in shown
    assert "converted 2 tensors" in shown and "float32 → float16" in shown
    here = reshard.convert(
        served.log.parent / "data" / "run", tmp_path / "here", mesh="x=4", cast={"bias": "float16"}
    )
    assert isinstance(report, reshard.ConversionReport)
    assert report.tensors == here.tensors
