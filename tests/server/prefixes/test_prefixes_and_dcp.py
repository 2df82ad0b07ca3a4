"""Checkpoints of TensorFlow, which a prefix names, and of torch's DCP by HTTP: read, listed, written, and never out of a root."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from safetensors.numpy import load

from tests.server.asking import ask, converted
from tests.server.live import Live
from tests.server.prefixes.saved import TABLE, TENSORFLOW, listed

NAME = "model/table"
LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "table", "axes": ["x"]}],
    "unmatched": "replicate",
}
SOURCES = {"data/tf/ckpt-7": NAME, "data/torch/step-20": "model.table"}
FORMATS = {"data/tf/ckpt-7": "tensorflow", "data/torch/step-20": "dcp"}


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


@pytest.mark.parametrize(("source", "to"), [*zip(SOURCES, ("dcp", "tensorflow"), strict=True)])
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
