"""State dicts of torch.save by HTTP: single files and Hugging Face's folders are read, planned, converted, and never out of a root."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.server.asking import ask, converted
from tests.server.live import Live, live
from tests.state_files import write_state

TABLE = np.arange(400, dtype=np.float32).reshape(20, 20)
TREE = {"table": np.asfortranarray(TABLE), "bias": np.ones(7, np.int32)}
FILE, FOLDER, RUN = "data/old/model.pt", "data/old/hf", "data/old/run"
SOURCES = (FILE, FOLDER, f"{FOLDER}/pytorch_model.bin", f"{RUN}/checkpoint-20")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("served")
    old = folder / "data" / "old"
    write_state(old / "model.pt", TREE)
    write_state(old / "hf" / "pytorch_model.bin", TREE)
    for step in (10, 20):
        write_state(old / "run" / f"checkpoint-{step}" / "pytorch_model.bin", TREE)
    write_state(folder / "secret.bin", TREE)
    for name in ("linked.pt", "linked/pytorch_model.bin"):
        (old / name).parent.mkdir(exist_ok=True)
        (old / name).symlink_to(folder / "secret.bin")
    with live(folder, requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


def test_folders_and_files_are_listed(client: httpx.Client) -> None:
    answer = client.get("/v1/checkpoints", params={"root": "data"})
    kinds = {found["path"]: found["kind"] for found in answer.json()["checkpoints"]}
    assert (kinds[FILE], kinds[FOLDER], kinds[RUN]) == ("torch", "torch", "steps")


@pytest.mark.parametrize("source", SOURCES)
def test_inspected_read_and_verified(client: httpx.Client, source: str) -> None:
    found = ask(client, "/v1/checkpoints:inspect", checkpoint=source)
    assert (found["uri"], found["format"]) == (source, "torch")
    asked = {"checkpoint": source, "name": "table", "slice": "3:5,1:4"}
    read = client.get("/v1/tensors", params=asked)
    assert (read.status_code, read.content) == (200, TABLE[3:5, 1:4].tobytes())
    verified = ask(client, "/v1/checkpoints:verify", checkpoint=source)
    assert {one["status"] for one in verified["tensors"]} == {"checksum"}
    latest = ask(client, "/v1/checkpoints:inspect", checkpoint=RUN, step="latest")
    assert latest["uri"] == f"{RUN}/checkpoint-20"


@pytest.mark.parametrize("source", SOURCES)
def test_planned_and_converted(client: httpx.Client, server: Live, source: str) -> None:
    target = f"data/made/{source.replace('/', '-')}.safetensors"
    asked = {"source": source, "target": target}
    assert ask(client, "/v1/plans", **asked)["target"] == target
    ended = converted(client, **asked, verify="readback")
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    held = load_file(server.log.parent / target)
    assert held["table"].tobytes() == TABLE.tobytes()


def test_a_target_of_this_format_is_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/plans", json={"source": FILE, "target": "data/made/x"})
    assert answer.status_code == 422
    assert "torch state dicts are only read" in answer.text
    assert client.post("/v1/plans", json={"source": FILE, "target": "data/x", "to": "torch"}).status_code == 422  # fmt: skip


@pytest.mark.parametrize("source", ["data/old/linked.pt", "data/old/linked"])
def test_links_out_of_the_root_are_refused(client: httpx.Client, source: str) -> None:
    answer = client.post("/v1/checkpoints:inspect", json={"checkpoint": source})
    assert 400 <= answer.status_code < 500
    assert "secret" not in answer.text
