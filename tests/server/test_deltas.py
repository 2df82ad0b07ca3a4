"""Versions of weights over HTTP, by a real server: a delta, a chain, what is made of it, and what is refused on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

import reshard
from tests.delta_layout import apply_delta, bytes_of
from tests.server.live import Live, live

RNG = np.random.default_rng(31)
KERNEL = RNG.normal(size=(64, 32)).astype(np.float32)
MAP = {
    "map": [{"from": "params/up", "to": "up.weight", "shape": "i o -> o i"}],
    "drop": ["^step$"],
}


def kernel(step: int) -> np.ndarray:
    made = KERNEL.copy()
    made[: step % 64, 3] += 1
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("served")
    for step in (1, 2, 3):
        reshard.save(folder / "data" / "run" / str(step), {"params": {"up": kernel(step)}, "step": step})  # fmt: skip
    with live(folder, requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def data(server: Live) -> Path:
    return server.log.parent / "data"


def ended(client: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    made = client.post(path, json=body)
    assert made.status_code == 202, made.text
    deadline = time.monotonic() + 120
    while not (found := client.get(made.headers["Location"]).json())["done"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return dict(found)


@pytest.fixture(scope="module")
def published(server: Live) -> Path:
    """A full version 1, and the deltas 2 and 3, published by the server."""
    with server.client() as client:
        publish(client, "chain")
    return server.log.parent / "data" / "chain"


def publish(client: httpx.Client, folder: str) -> None:
    full = {"source": "data/run/1", "target": f"data/{folder}/weight_v000001", "to": "safetensors", "map": MAP}  # fmt: skip
    assert ended(client, "/v1/conversions", full)["state"] == "succeeded"
    for number in (2, 3):
        # On the full version first, then from one step to the next.
        old = f"data/{folder}/weight_v000001" if number == 2 else "data/run/2"
        body = {"old": old, "new": f"data/run/{number}", "target": f"data/{folder}/weight_v{number:06}", "map": MAP}  # fmt: skip
        found = ended(client, "/v1/deltas", body)
        assert found["state"] == "succeeded", found["error"]
        [report] = found["result"]
        assert (report["old"], report["new"], report["target"]) == (
            old,
            body["new"],
            body["target"],
        )
        assert (report["version"], report["base_version"]) == (f"{number:06}", f"{number - 1:06}")
        assert report["tensors"][0]["changed"] == (number if number == 2 else 1) - (number == 2)


def test_a_receiver_follows_the_chain(published: Path) -> None:
    found = bytes_of(load_file(published / "weight_v000001" / "model.safetensors"))
    for number in (2, 3):
        found = apply_delta(published / f"weight_v{number:06}", found)
    assert found == bytes_of({"up.weight": np.ascontiguousarray(kernel(3).T)})


def test_a_chain_is_converted_and_verified(
    client: httpx.Client, data: Path, published: Path
) -> None:
    folder = f"data/{published.name}"
    chain = {"deltas": [f"{folder}/weight_v000003", f"{folder}/weight_v000002"]}
    base = f"{folder}/weight_v000001"
    made = ended(client, "/v1/conversions", {"source": base, "target": "data/full", **chain})
    assert made["state"] == "succeeded", made["error"]
    np.testing.assert_array_equal(reshard.restore(data / "full")["up.weight"], kernel(3).T)
    verified = client.post("/v1/checkpoints:verify", json={"checkpoint": base, **chain}).json()
    assert (verified["differences"], verified["tensors"][0]["status"]) == (0, "checksum")
    both = client.post("/v1/checkpoints:verify", json={"checkpoint": base, "other": "data/full", **chain}).json()  # fmt: skip
    assert (both["differences"], both["tensors"][0]["status"]) == (0, "equal")


def test_errors_name_versions_and_no_folder_of_the_server(
    client: httpx.Client, data: Path, published: Path
) -> None:
    assert published.exists()
    asked = {"source": "data/chain/weight_v000001", "target": "data/never", "deltas": ["data/chain/weight_v000003"]}  # fmt: skip
    missing = ended(client, "/v1/conversions", asked)
    assert missing["state"] == "failed"
    assert "000002" in missing["error"]["detail"]
    body = {
        "old": "data/run/1",
        "new": "data/run/2",
        "target": "data/chain/weight_v000002",
        "map": MAP,
    }
    there = ended(client, "/v1/deltas", body)["error"]
    assert (there["field"], there["detail"]) == (
        "/target",
        "the version 'data/chain/weight_v000002' exists already and was left untouched, since receivers may have read it; publish the next version",
    )
    reshaped = ended(client, "/v1/deltas", {**body, "new": "data/run/1", "map": None, "target": "data/x/weight_v000009", "old": "data/chain/weight_v000001"})  # fmt: skip
    assert "publish a full version (reshard convert)" in reshaped["error"]["detail"]
    assert str(data) not in json.dumps([missing, there, reshaped])
    assert not (data / "never").exists()


def test_a_full_version_takes_the_place_of_a_delta(client: httpx.Client) -> None:
    body = {"old": "data/run/none", "new": "data/run", "step": "latest", "target": "data/anchors/weight_v000005", "map": MAP, "or_full": True}  # fmt: skip
    found = ended(client, "/v1/deltas", body)
    [report] = found["result"]
    assert (found["state"], report["source"], report["command"]) == (
        "succeeded",
        "data/run/3",
        "convert",
    )
    assert report["warnings"] == [
        "a full version was published, since no delta could be made: data/run/none does not exist: expected the directory of a checkpoint; check "
        "the path"
    ]
