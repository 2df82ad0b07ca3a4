"""Checkpoints of TensorFlow, which a prefix names, and of torch's DCP by HTTP: read, listed, written, and never out of a root."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

import reshard
from reshard.cli.app import run
from tests.dcp_files import cut, write_dcp
from tests.formats.safetensors.build import snapshot_of
from tests.megatron.saved import SIZES, VOCAB, unpack, weight
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

TABLE = np.arange(400, dtype=np.float32).reshape(20, 20)
TREE = {"model": {"table": TABLE, "bias": np.ones(7, np.int32)}}
NAME = "model/table"
TENSORFLOW: dict[str, Any] = {
    "to": "tensorflow",
    "layout": {"partitions": [{"match": "table$", "fixed_shards": 3}]},
}
LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "table", "axes": ["x"]}],
    "unmatched": "replicate",
}
SOURCES = {"data/tf/ckpt-7": NAME, "data/torch/step-20": "model.table"}
FORMATS = {"data/tf/ckpt-7": "tensorflow", "data/torch/step-20": "dcp"}
ENDINGS = [f".data-{n:05d}-of-00003" for n in range(3)] + [".index", ".slices.json"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its root ``data`` has two runs and single prefixes. Its root ``other`` is a folder inside a repository of Hugging Face's cache."""
    folder = tmp_path_factory.mktemp("served")
    data = folder / "data"
    reshard.save(data / "orbax", TREE)
    for name in ("tf/ckpt-7", "tf/ckpt-30", "tf/best", "top", "../secret/ckpt", "hf/ckpt"):
        reshard.convert(data / "orbax", os.path.normpath(data / name), **TENSORFLOW)
    (data / "tf" / "ckpt-40.data-00000-of-00001").write_bytes(b"begun")
    (data / "tf" / "checkpoint").write_text('model_checkpoint_path: "ckpt-30"\n')
    for step in (10, 20):
        tree = {"model.table": cut(TABLE, 3), "model.bias": cut(TREE["model"]["bias"], 1)}
        write_dcp(data / "torch" / f"step-{step}", tree, files=3)
    (data / "torch" / "step-30").mkdir()
    (data / "torch" / "step-30" / "__0_0.distcp").write_bytes(b"begun")
    _link(data / "linked" / "ckpt", folder / "secret" / "ckpt", ".data-00001-of-00003")
    _link(data / "by-index" / "ckpt", folder / "secret" / "ckpt", ".index")
    snapshot = snapshot_of(data / "hf", folder / "models--a--b")
    with live(folder, "--root", f"other={snapshot.parent}", requests_per_minute=10**6) as found:
        yield found


def _link(prefix: Path, secret: Path, ending: str) -> None:
    """A copy of which one file is a link out of the root."""
    prefix.parent.mkdir()
    for one in ENDINGS:
        there = secret.with_name(secret.name + one)
        place = prefix.with_name(prefix.name + one)
        if one == ending:
            place.symlink_to(there)
        else:
            place.write_bytes(there.read_bytes())


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


@pytest.fixture
def data(server: Live) -> Path:
    return server.log.parent / "data"


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def converted(client: httpx.Client, **body: Any) -> Any:
    made = client.post("/v1/conversions", json=body)
    assert made.status_code == 202, made.text
    with client.stream("GET", f"{made.headers['Location']}/events", timeout=120) as stream:
        last = [line for line in stream.iter_lines() if line][-1]
    return json.loads(last.removeprefix("data: "))


def listed(client: httpx.Client, **query: Any) -> dict[str, Any]:
    answer = client.get("/v1/checkpoints", params={"root": "data", **query})
    assert answer.status_code == 200, answer.text
    return {found["path"]: found for found in answer.json()["checkpoints"]}


def test_listed_with_their_format(client: httpx.Client) -> None:
    found = listed(client)
    kinds = {
        "data/orbax": "orbax",
        "data/tf": "steps",
        "data/tf/best": "tensorflow",
        "data/top": "tensorflow",
        "data/torch": "steps",
    }
    assert {path: found[path]["kind"] for path in kinds} == kinds
    assert (found["data/tf"]["steps"], found["data/tf"]["folders"]) == ([7, 30], ["ckpt-7", "ckpt-30"])  # fmt: skip
    assert (found["data/torch"]["steps"], found["data/torch"]["folders"]) == ([10, 20], ["step-10", "step-20"])  # fmt: skip
    assert all(one["modified_at"].startswith("20") for one in found.values())
    assert not [path for path in found if re.search(r"\.index|\.data-|slices|secret", path)]
    assert list(found) == sorted(found, key=lambda path: path.split("/"))


def test_listed_a_page_at_a_time(client: httpx.Client) -> None:
    found, token = [], {}
    while token is not None:
        query = {"root": "data", "page_size": 1, **token}
        page = client.get("/v1/checkpoints", params=query).json()
        found += [one["path"] for one in page["checkpoints"]]
        token = {"page_token": page["next_page_token"]} if page["next_page_token"] else None
    assert found == list(listed(client))


def test_prefixes_of_which_a_file_is_a_link_out_are_not_listed(client: httpx.Client) -> None:
    assert not [path for path in listed(client) if path.startswith(("data/linked", "data/by-"))]


@pytest.mark.parametrize("source", SOURCES)
def test_inspected_read_and_verified(client: httpx.Client, source: str) -> None:
    name = SOURCES[source]
    found = ask(client, "/v1/checkpoints:inspect", checkpoint=source)
    assert (found["uri"], found["format"]) == (source, FORMATS[source])
    assert {t["name"]: t["shape"] for t in found["tensors"]}[name] == [20, 20]
    run, _, step = source.rpartition("/")
    latest = ask(client, "/v1/checkpoints:inspect", checkpoint=run, step="latest")
    assert latest["uri"] == f"{run}/{ {'tf': 'ckpt-30', 'torch': 'step-20'}[run[5:]] }"
    asked = {"checkpoint": source, "name": name, "slice": "3:5,1:4"}
    read = client.get("/v1/tensors", params=asked)
    assert (read.status_code, read.content) == (200, TABLE[3:5, 1:4].tobytes())
    asked = {"checkpoint": run, "step": step.rpartition("-")[2], "name": name}
    assert client.get("/v1/tensors", params=asked).content == TABLE.tobytes()
    shard = {"checkpoint": source, "shard": 1, "layout": json.dumps(LAYOUT)}
    answer = client.get("/v1/tensors", params=shard)
    assert answer.status_code == 200, answer.text
    assert load(answer.content)[name].tobytes() == TABLE[5:10].tobytes()
    assert ask(client, "/v1/checkpoints:verify", checkpoint=source)["differences"] == 0


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("to", ["orbax", "safetensors", "dcp", "tensorflow"])
def test_planned_and_converted(client: httpx.Client, source: str, to: str) -> None:
    target = f"data/made/{to}/{source.replace('/', '-')}"
    asked = {"source": source, "target": target, "to": to, "layout": LAYOUT}
    planned = ask(client, "/v1/plans", **asked)
    assert (planned["source"], planned["target"]) == (source, target)
    ended = converted(client, **asked, verify="readback")
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    assert (ended["result"][0]["source"], ended["result"][0]["target"]) == (source, target)
    verified = ask(client, "/v1/checkpoints:verify", checkpoint=source, other=target)
    assert verified["differences"] == 0
    again = converted(client, **asked, verify="readback", labels={"again": "1"})
    assert (again["state"], again["result"][0]["already_done"]) == ("succeeded", True)
    assert listed(client, prefix=f"made/{to}")[target]["kind"] == to


def test_a_file_of_keras_that_is_asked_for_by_its_format(client: httpx.Client) -> None:
    asked = {"source": "data/tf/ckpt-7", "to": "keras"}
    assert converted(client, target="data/made/k.weights.h5", **asked)["state"] == "succeeded"
    refused = client.post("/v1/conversions", json={"target": "data/made/k", **asked})
    assert (refused.status_code, refused.json()["field"]) == (422, "/target")
    assert refused.json()["detail"] == (
        "the target 'data/made/k' should have a name that ends in .weights.h5, by which Keras knows its files; add that ending (target)"
    )
    refused = client.post("/v1/conversions", json={"source": "data/tf/ckpt-7", "target": "data/a.pt"})  # fmt: skip
    assert (refused.status_code, refused.json()["field"]) == (422, "/target")
    found = ask(client, "/v1/checkpoints:verify", checkpoint="data/tf/ckpt-7", other="data/made/k.weights.h5")  # fmt: skip
    assert found["differences"] == 0


def test_several_targets_of_which_one_is_a_prefix(client: httpx.Client) -> None:
    targets = [{"target": "data/both/ckpt-1", **TENSORFLOW}, {"target": "data/both/st", "to": "safetensors"}]  # fmt: skip
    ended = converted(client, source="data/tf/ckpt-7", targets=targets)
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    for target in ("data/both/ckpt-1", "data/both/st"):
        answer = ask(client, "/v1/checkpoints:verify", checkpoint="data/orbax", other=target)
        assert answer["differences"] == 0


def test_a_prefix_that_is_there_is_not_replaced(client: httpx.Client, data: Path) -> None:
    before = (data / "top.index").read_bytes()
    for more in ({}, {"overwrite": True}):
        ended = converted(client, source="data/orbax", target="data/top", **TENSORFLOW, cast=[["table", "float16"]], **more)  # fmt: skip
        assert ended["state"] == "failed"
        assert "the target 'data/top' exists already, with the file 'top.data-" in ended["error"]["detail"]  # fmt: skip
    ended = converted(client, source="data/tf/ckpt-7", target="data/tf/ckpt-7.index", overwrite=True, to="orbax")  # fmt: skip
    assert ended["error"]["detail"].startswith("the target 'data/tf/ckpt-7.index' is ")
    ended = converted(client, source="data/orbax", target="data/torch", **TENSORFLOW)
    assert "the target 'data/torch' is there already, but it should be" in ended["error"]["detail"]
    assert (data / "top.index").read_bytes() == before


@pytest.mark.parametrize(
    ("checkpoint", "status", "words"),
    [
        ("data/tf/ckpt-7.index", 422, "which its prefix names: data/tf/ckpt-7"),
        ("data/tf/ckpt-7.data-00000-of-00003", 422, "which its prefix names: data/tf/ckpt-7"),
        ("data/tf/ckpt-40", 422, "'ckpt-40.data-00000-of-00001' is there without 'ckpt-40.index'"),
        ("data/tf/ckpt-8", 404, "there is nothing at 'data/tf/ckpt-8'"),
        ("data/tf/ckpt", 404, "there is nothing at 'data/tf/ckpt'"),
        ("data/tf", 422, "data/tf is a training run's folder with steps 7, 30"),
        ("data/torch/step-30", 422, "data/torch/step-30"),
        ("data/linked/ckpt", 422, "is a symbolic link to a place outside of data/linked"),
        ("data/by-index/ckpt", 422, "is a symbolic link to a place outside of data/by-index"),
        ("other/1f/ckpt", 422, "'other/1f/ckpt' holds the link 'checkpoint', which leads out"),
        ("data/../secret/ckpt", 422, "it has a name of dots"),
        ("nowhere/ckpt", 404, "there is nothing at 'nowhere/ckpt'"),
    ],
)  # fmt: skip
def test_what_is_refused(
    client: httpx.Client, server: Live, checkpoint: str, status: int, words: str
) -> None:
    folder = str(server.log.parent)
    body = {"source": checkpoint, "target": "data/none"}
    answers = [
        client.post("/v1/checkpoints:inspect", json={"checkpoint": checkpoint}),
        client.post("/v1/checkpoints:verify", json={"checkpoint": checkpoint}),
        client.get("/v1/tensors", params={"checkpoint": checkpoint, "name": NAME}),
        client.post("/v1/plans", json=body),
    ]
    for answer in answers:
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"]
        assert folder not in answer.text
    made = client.post("/v1/conversions", json=body)
    if made.status_code == 202:
        ended = converted(client, **body)
        assert ended["state"] == "failed" and folder not in json.dumps(ended)
        absent = words.startswith("there is nothing")
        assert ("does not exist" if absent else words) in ended["error"]["detail"]
    else:
        assert made.status_code == status
        assert words in made.json()["detail"]
    assert not (server.log.parent / "data" / "none").exists()


@pytest.mark.parametrize(
    "target",
    ["data/../secret/made", "secret/made", "data/out/.x.reshard-partial", "data/.reshard-held/x"],
)
def test_a_prefix_is_not_written_out_of_the_roots(client: httpx.Client, target: str) -> None:
    body = {"source": "data/orbax", "target": target, **TENSORFLOW}
    for path in ("/v1/plans", "/v1/conversions"):
        assert client.post(path, json=body).status_code in (404, 422)


def test_digests_are_recorded_in_folders_only(client: httpx.Client) -> None:
    answer = client.post("/v1/checkpoints:fingerprint", json={"checkpoint": "data/tf/ckpt-7"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("data/tf/ckpt-7 is the prefix of files in a folder")
    answer = client.post("/v1/checkpoints:fingerprint", json={"checkpoint": "data/torch/step-10"})
    assert answer.json()["written"] == ["data/torch/step-10/slices.json"]


def test_the_commands_with_a_server(
    server: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", TOKENS["bob"][0])
    to = ["--server", server.url, "--json"]
    asked = ["data/tf/ckpt-7", "data/commands/ckpt-1", "--to", "tensorflow"]
    assert run(["plan", *asked, *to]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "data/commands/ckpt-1"
    assert run(["convert", *asked, *to]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "data/commands/ckpt-1"
    for command in (["verify", "data/tf/ckpt-7", "data/commands/ckpt-1"], ["inspect", "data/commands/ckpt-1"]):  # fmt: skip
        assert run([*command, *to]) == 0, capsys.readouterr().err
        capsys.readouterr()


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
        _until(lambda step=step: _outcome(client, step) == "started")
        for ending in (".index", *ENDINGS[:3]):
            (run / f"ckpt-{step}{ending}").unlink()
    _until(lambda: all(_state(client, step) == "succeeded" for step in (1, 2, 3)))
    published = data / "published"
    _until(lambda: {path.name for path in published.iterdir()} == {"2", "3"})
    for step in (2, 3):
        assert np.array_equal(reshard.restore(published / str(step))["model"]["table"], TABLE)
    runs = client.get("/v1/schedules/publish/runs").json()["runs"]
    assert {run["key"] for run in runs} == {"1", "2", "3"}
    assert ".reshard-held" not in client.get("/v1/conversions").text
    _until(lambda: not any((data / ".reshard-held").iterdir()))


def test_each_new_step_of_torch_becomes_a_prefix(client: httpx.Client, data: Path) -> None:
    schedule = {
        "when": {"directory": "data/torch", "step_prefix": "step", "poll_seconds": 0.2},
        "targets": [{"target": "data/from-torch/ckpt-{step}", "to": "tensorflow"}],
        "keep": 1,
    }
    assert client.put("/v1/schedules/torch", json=schedule).status_code == 201
    _until(lambda: all(_state(client, step, "torch") == "succeeded" for step in (10, 20)))
    made = data / "from-torch"
    _until(
        lambda: (
            {path.name.partition(".")[0] for path in made.iterdir()} == {"checkpoint", "ckpt-20"}
        )
    )
    assert reshard.verify(data / "torch" / "step-20", made / "ckpt-20").differences == 0
    runs = client.get("/v1/schedules/torch/runs").json()["runs"]
    assert {run["key"] for run in runs} == {"10", "20"}


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
    _until(lambda: all(_state(client, step, "megatron") == "succeeded" for step in (5, 10)))
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


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
