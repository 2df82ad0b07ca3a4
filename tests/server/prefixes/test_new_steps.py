"""Each new step of a training run is published by a schedule: of TensorFlow's prefixes, of torch's DCP, and of Megatron."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import reshard
from tests.megatron.saved import SIZES, VOCAB, unpack, weight
from tests.server.asking import ask
from tests.server.prefixes.saved import ENDINGS, TABLE, TENSORFLOW, listed
from tests.server.waiting import until


def test_each_new_step_is_published_as_safetensors(
    client: httpx.Client, data: Path, tmp_path: Path
) -> None:
    """TensorFlow's CheckpointManager with ``max_to_keep``: a step is deleted while it waits; one is not finished yet."""
    run = data / "trained"
    run.mkdir()
    reshard.convert(data / "orbax", tmp_path / "ckpt-1", **TENSORFLOW)
    (run / "ckpt-9.data-00000-of-00001").write_bytes(b"begun")
    schedule = {
        "when": {"directory": "data/trained", "step_prefix": "ckpt", "poll_seconds": 0.2},
        "targets": [{"target": "data/published/{step}", "to": "safetensors"}],
        "keep": 2,
    }
    assert client.put("/v1/schedules/publish", json=schedule).status_code == 201
    for step in (1, 2, 3):
        for ending in ENDINGS[:4]:
            content = (tmp_path / f"ckpt-1{ending}").read_bytes()
            (run / f"ckpt-{step}{ending}").write_bytes(content)
        until(lambda step=step: _outcome(client, step) == "started")
        for ending in (".index", *ENDINGS[:3]):
            (run / f"ckpt-{step}{ending}").unlink()
    until(lambda: all(_state(client, step) == "succeeded" for step in (1, 2, 3)))
    published = data / "published"
    until(lambda: {path.name for path in published.iterdir()} == {"2", "3"})
    for step in (2, 3):
        assert np.array_equal(reshard.restore(published / str(step))["model"]["table"], TABLE)
    runs = client.get("/v1/schedules/publish/runs").json()["runs"]
    assert {run["key"] for run in runs} == {"1", "2", "3"}
    assert ".reshard-held" not in client.get("/v1/conversions").text
    until(lambda: not any((data / ".reshard-held").iterdir()))


def test_each_new_step_of_megatron_is_published_by_a_recipe(
    client: httpx.Client, data: Path, tmp_path: Path
) -> None:
    step = unpack(tmp_path) / "0.16.1" / "llama"
    run = data / "megatron"
    for number in (5, 10, 15):
        shutil.copytree(step, run / f"iter_{number:07}")
    (run / "latest_checkpointed_iteration.txt").write_text("10")
    (run / "iter_0000015" / ".metadata").unlink()
    found = listed(client)["data/megatron"]
    assert (found["kind"], found["steps"]) == ("steps", [5, 10])
    latest = ask(client, "/v1/checkpoints:inspect", checkpoint="data/megatron", step="latest")
    assert (latest["uri"], latest["format"]) == ("data/megatron/iter_0000010", "torch_dist")
    sizes = {"vocab": VOCAB, "g": SIZES["num_query_groups"], "d": SIZES["kv_channels"]}
    by_recipe = {"map": "megatron-llama3", "sizes": sizes, "select": ["^(embedding|decoder|output_layer)[.]"]}  # fmt: skip
    schedule = {
        "when": {"directory": "data/megatron", "step_prefix": "iter", "step_digits": 7, "poll_seconds": 0.2},
        "targets": [{"target": "data/from-megatron/{step}", "to": "safetensors", **by_recipe}],
    }  # fmt: skip
    assert client.put("/v1/schedules/megatron", json=schedule).status_code == 201
    until(lambda: all(_state(client, step, "megatron") == "succeeded" for step in (5, 10)))
    made = reshard.restore(data / "from-megatron" / "10")
    wanted = weight("output_layer.weight", (32, SIZES["hidden_size"]))[:VOCAB]
    assert (made["lm_head.weight"] == wanted).all()
    runs = client.get("/v1/schedules/megatron/runs").json()["runs"]
    assert {run["key"] for run in runs} == {"5", "10"}


def _run(client: httpx.Client, step: int, name: str) -> dict[str, Any]:
    runs = client.get(f"/v1/schedules/{name}/runs").json()["runs"]
    found = [run for run in runs if run["key"] == str(step)]
    return found[0] if found else {}


def _outcome(client: httpx.Client, step: int, name: str = "publish") -> str | None:
    return _run(client, step, name).get("outcome")


def _state(client: httpx.Client, step: int, name: str = "publish") -> str | None:
    return _run(client, step, name).get("state")
