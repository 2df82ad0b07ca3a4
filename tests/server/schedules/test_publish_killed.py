"""A real server that publishes versions is killed while it makes them: no version is missing, made twice, or seen half."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load_file

import reshard
from tests.delta_layout import apply_delta, bytes_of
from tests.server.live import live
from tests.server.waiting import until

URL = "/v1/schedules/s"
STEPS = range(1, 5)
INDEX = "model.safetensors.index.json"
BODY: dict[str, Any] = {
    "when": {"directory": "data/run", "poll_seconds": 0.2},
    "targets": [{"target": "data/published/weight_v{version}", "to": "safetensors"}],
    "delta": {"anchor_every": 10},
    "workers": 1,
}


def weights(step: int) -> dict[str, np.ndarray]:
    """Random bytes that all change with each step, which take some time to compress."""
    rng = np.random.default_rng(step)
    return {f"w{n}": rng.integers(0, 256, (1024, 4096), np.uint8) for n in range(6)}


def begun(published: Path) -> set[str]:
    """The names beside the versions, which are of versions that are being written."""
    return {path.name for path in published.glob("*") if not path.name.startswith("weight_v")}


def ended(client: httpx.Client) -> list[str | None]:
    runs = client.get(f"{URL}/runs").json()["runs"]
    assert not [run for run in runs if run["state"] in ("failed", "cancelled")], runs
    return [run["state"] for run in runs]


def test_killed_within_versions(tmp_path: Path) -> None:
    data, published = tmp_path / "data", tmp_path / "data" / "published"
    for step in STEPS:
        reshard.save(data / "run" / str(step), weights(step))
    seen = set[str]()

    def begins() -> bool:
        new = begun(published) - seen
        seen.update(new)
        return bool(new)

    for _ in ("the full version", "a delta"):
        with live(tmp_path, lease_seconds=2) as server:
            with server.client() as client:
                client.put(URL, json=BODY).raise_for_status()
            until(begins)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(60)
        for folder in published.glob("weight_v*"):
            assert (folder / INDEX).exists(), f"{folder.name} is there without its index"
    with live(tmp_path, lease_seconds=2) as server, server.client() as client:
        until(lambda: ended(client) == ["succeeded"] * len(STEPS))
    assert not begun(published)
    names = [f"weight_v{number:06}" for number in STEPS]
    assert sorted(path.name for path in published.glob("weight_v*")) == names
    kinds = [one.kind for one in reshard.inspect_versions(published)]
    assert kinds == ["full", "delta", "delta", "delta"]
    first, *deltas = (published / name for name in names)
    held = bytes_of({k: v for f in sorted(first.glob("*.safetensors")) for k, v in load_file(f).items()})  # fmt: skip
    for step, folder in zip(STEPS[1:], deltas, strict=True):
        held = apply_delta(folder, held)
        assert held == bytes_of(weights(step)), folder.name
