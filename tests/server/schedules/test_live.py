"""A real server watches while a stock CheckpointManager writes steps and deletes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import reshard
from tests.server.forked import HOLD
from tests.server.live import Live, live
from tests.server.waiting import until

URL = "/v1/schedules/s"
WRITER = Path(__file__).with_name("training_run.py")
LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "w", "axes": ["x"]}]}
BODY: dict[str, Any] = {
    "when": {"directory": "data/run", "poll_seconds": 0.2},
    "targets": [{"target": "data/out/{step}", "layout": LAYOUT}],
}


@contextmanager
def training(folder: Path, steps: range, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A training run in a process of its own."""
    document = {"steps": [steps.start, steps.stop, steps.step], **options}
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(folder / "data" / "run"), json.dumps(document)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    try:
        yield process
        assert process.wait(300) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stdin and process.stdout
        process.stdin.close()
        process.stdout.close()


def let_it_train(run: subprocess.Popen[str], client: httpx.Client, steps: range) -> None:
    """Lets a run that rests go on behind each step once the server has taken it."""
    assert run.stdin
    for step in steps:
        wait_for(
            client, lambda found, key=str(step): found.get(key, {}).get("outcome") == "started"
        )
        run.stdin.write("\n")
        run.stdin.flush()


def runs(client: httpx.Client) -> dict[str, dict[str, Any]]:
    found = client.get(f"{URL}/runs", params={"page_size": 200}).json()["runs"]
    return {run["key"]: run for run in found}


def wait_for(client: httpx.Client, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 400
    while not holds(found := runs(client)):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def all_succeeded(*steps: int) -> Callable[[dict[str, Any]], bool]:
    def holds(found: dict[str, Any]) -> bool:
        assert not [r for r in found.values() if r["state"] in ("failed", "cancelled")], found
        return all(found.get(str(s), {}).get("state") == "succeeded" for s in steps)

    return holds


def is_right(folder: Path, step: int) -> bool:
    """Whether the output of a step equals the step that the training run wrote."""
    tree = reshard.restore(folder / "data" / "out" / str(step))
    found = tree["w"] if "w" in tree else tree[next(iter(tree))]["w"]
    return bool(np.array_equal(found, np.full((256, 64), step, np.float32)))


def nothing_held(folder: Path) -> bool:
    held = folder / "data" / ".reshard-held"
    deadline = time.monotonic() + 60
    while held.is_dir() and any(held.iterdir()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_each_step_of_a_training_run(tmp_path: Path) -> None:
    """It keeps two steps only, and of its outputs two are kept."""
    with live(tmp_path) as server, server.client() as client:
        made = client.put(URL, json={**BODY, "keep": 2})
        assert made.status_code == 201, made.text
        with training(tmp_path, range(4), form="v1", keep=2, pause=None) as run:
            let_it_train(run, client, range(4))
        found = wait_for(client, all_succeeded(*range(4)))
        assert all(run["outcome"] == "started" for run in found.values())
        until(lambda: {p.name for p in (tmp_path / "data" / "out").iterdir()} == {"2", "3"})
        assert all(is_right(tmp_path, step) for step in (2, 3))
        assert nothing_held(tmp_path)
        told = client.get(f"/v1/conversions/{found['3']['conversion']}").json()
        assert (told["request"]["source"], told["schedule"]) == ("data/run/3", "s")
        assert told["result"][0]["source"] == "data/run/3"
        assert ".reshard-held" not in json.dumps(told)
        assert [line for line in server.lines() if line["level"] == "error"] == []


def test_steps_that_are_deleted_while_they_are_converted(tmp_path: Path) -> None:
    """One conversion at a time, of steps that are deleted once they are linked: all are converted, none partly."""
    with live(tmp_path, running=1) as server, server.client() as client:
        assert client.put(URL, json=BODY).status_code == 201
        with training(tmp_path, range(6), form="v0", keep=1, pause=None) as run:
            let_it_train(run, client, range(6))
        assert [p.name for p in (tmp_path / "data" / "run").iterdir()] == ["5"]
        found = wait_for(client, all_succeeded(*range(6)))
        assert {key: run["outcome"] for key, run in found.items()} == dict.fromkeys(map(str, range(6)), "started")  # fmt: skip
        assert all(is_right(tmp_path, step) for step in range(6))
        assert nothing_held(tmp_path)


@pytest.mark.campaign
def test_a_server_that_is_killed_misses_no_step_and_repeats_none(tmp_path: Path) -> None:
    """The server is killed twice while the training run continues; every step is converted in the end."""
    ids: dict[str, set[str]] = {}
    with training(tmp_path, range(5), form="v0", keep=None, pause=0.8) as run:
        for number in range(3):
            with live(tmp_path, lease_seconds=2) as server, server.client() as client:
                if number == 0:
                    assert client.put(URL, json=BODY).status_code == 201
                until(lambda c=client, n=number: len(runs(c)) > n)
                _gather(ids, client)
                if number == 2:
                    run.wait(300)
                    found = wait_for(client, all_succeeded(*range(5)))
                    assert nothing_held(tmp_path)
                    _gather(ids, client)
                else:
                    _kill(server)
    assert {run["outcome"] for run in found.values()} == {"started"}
    assert len(found) == 5
    assert all(len(conversions) == 1 for conversions in ids.values())
    assert all(is_right(tmp_path, step) for step in range(5))


def test_killed_while_a_held_step_is_converted(tmp_path: Path) -> None:
    """The step is deleted meanwhile; the conversion continues from its journal and the hard links."""
    source = tmp_path / "data" / "run" / "1"
    rng = np.random.default_rng(1)
    weights = {f"w{i:02}": rng.integers(0, 1 << 16, (1024, 1024), np.int32) for i in range(5)}
    target, hold = {"target": "data/out/{step}"}, tmp_path / HOLD
    body = {**BODY, "targets": [target], "workers": 1}
    hold.touch()
    with live(tmp_path) as server, server.client() as client:
        assert client.put(URL, json=body).status_code == 201
        reshard.save(tmp_path / "data" / "growing", weights)
        source.parent.mkdir()
        (tmp_path / "data" / "growing").rename(source)
        until(lambda: _moved(client) >= 0.5)
        _kill(server)
    hold.unlink()
    for path in [p for p in source.rglob("*") if p.is_file()]:
        path.unlink()
    with live(tmp_path) as server, server.client() as client:
        found = wait_for(client, all_succeeded(1))
        told = client.get(f"/v1/conversions/{found['1']['conversion']}").json()
        assert told["progress"]["resumed_bytes"] > 0
        assert told["attempts"] == 2
        assert nothing_held(tmp_path)
    tree = reshard.restore(tmp_path / "data" / "out" / "1")
    assert all(np.array_equal(tree[name], array) for name, array in weights.items())


def _moved(client: httpx.Client) -> float:
    """Which part of the only step has moved."""
    run = runs(client).get("1")
    if run is None or run["conversion"] is None:
        return 0.0
    told = client.get(f"/v1/conversions/{run['conversion']}").json()
    assert not told["done"], told
    at = told["progress"]
    return 0.0 if at is None else at["moved_bytes"] / at["total_bytes"]


def _gather(ids: dict[str, set[str]], client: httpx.Client) -> None:
    listed = client.get("/v1/conversions", params={"schedule": "s", "page_size": 200}).json()
    for told in listed["conversions"]:
        ids.setdefault(told["request"]["source"], set()).add(told["id"])


def _kill(server: Live) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(60)
