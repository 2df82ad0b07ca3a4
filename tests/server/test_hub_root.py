"""A root that is a repository of the hub: branches below ``@``, pinned to a commit where they are read, made where they are written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from reshard_server.auth.root_paths import CALLS_AT_ONCE, Roots
from reshard_server.views import recorded

import reshard
from reshard.storage.hub import client
from reshard.storage.hub.store import hub_branch
from tests.emulators.hub import Fault, Hub
from tests.server.asking import converted
from tests.server.live import live
from tests.server.served import Served
from tests.server.views.run import FILE, put, refused, save_step

WHO = "root"
HOME = "hf://org/model"


@pytest.fixture
def hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub on which the server may write; it is asked again for a short time only."""
    hub.tokens["hf_writer"] = frozenset()
    hub.writers.add("hf_writer")
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    monkeypatch.setattr(client, "RETRY_S", 0.1)
    return hub


@pytest.fixture
def on_hub(serve: Callable[..., Served], hub: Hub, tmp_path: Path) -> Served:  # noqa: ARG001  it is asked
    return serve(roots={"models": HOME, "data": tmp_path / "data"})


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, bytes]:
    """Files of a model."""
    reshard.convert(save_step(tmp_path, 1), tmp_path / "model", to="safetensors")
    return {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}


def listed(served: Served, **query: Any) -> list[str]:
    answer = served.ask("GET", "/v1/checkpoints", WHO, params={"root": "models", **query})
    assert answer.status_code == 200, answer.text
    return [one["path"] for one in answer.json()["checkpoints"]]


def inspected(served: Served, path: str) -> Any:
    return served.ask("POST", "/v1/checkpoints:inspect", WHO, json={"checkpoint": path})


def test_to_a_branch_and_back(hub: Hub, tmp_path: Path) -> None:
    with live(tmp_path, "--root", f"models={HOME}") as server, server.client(WHO) as asked:
        save_step(tmp_path / "data", 1)
        for source, target in (("data/1", "models/@step-1"), ("models/@step-1", "data/back")):
            found = converted(asked, source=source, target=target)
            assert (found["state"], found["error"]) == ("succeeded", None)
            told = found["result"][0]
            assert (told["source"], told["target"]) == (source, target)
        other = converted(asked, source="data/1", target="models/@step-1", drop=["bias"])
        assert (other["state"], other["error"]["status"]) == ("failed", 409)
        assert other["error"]["detail"].startswith("models/@step-1 has weights already, such as")
    repo = hub.repo("org/model")
    assert {*repo.refs} == {"main", "step-1"}
    assert reshard.verify(tmp_path / "data" / "1", tmp_path / "data" / "back").equal


def test_what_is_read_is_what_the_branch_is_now(
    on_hub: Served, hub: Hub, weights: dict[str, bytes]
) -> None:
    repo = hub.repo("org/model")
    repo.commit({f"a/{name}": data for name, data in weights.items()})
    assert listed(on_hub) == ["models/a"]
    repo.commit({f"b/{name}": data for name, data in weights.items()})
    repo.commit(weights, "tuned")
    assert listed(on_hub) == ["models/a", "models/b"]
    assert listed(on_hub, prefix="@tuned/a") == []
    assert inspected(on_hub, "models/@tuned").status_code == 200
    assert inspected(on_hub, "models/@tuned/c").status_code == 404
    answer = inspected(on_hub, "models/@none")
    assert answer.status_code == 404 and "models/@none" in answer.json()["detail"]


@pytest.mark.parametrize("root", ["hf://org/model@prod", "hf://org/model/folder"])
def test_a_root_of_one_branch_or_folder_has_no_others(
    serve: Callable[..., Served], hub: Hub, weights: dict[str, bytes], root: str
) -> None:
    repo, below = hub.repo("org/model"), {f"folder/a/{n}": data for n, data in weights.items()}
    repo.commit(below)
    for branch in ("prod", "other"):
        repo.commit(below, branch)
    served = serve(roots={"models": root})
    assert listed(served) == ["models/a" if root.endswith("folder") else "models/folder/a"]
    assert inspected(served, "models/@other").status_code == 404
    status, detail = refused(inspected(served, "models/@other/folder/a"))
    assert status == 404 and "org/model" not in detail
    for ref in repo.refs:
        repo.commit({"folder/b/model.safetensors": b"\xff" * 16}, ref)
    damaged = "models/b" if root.endswith("folder") else "models/folder/b"
    status, detail = refused(inspected(served, damaged))
    assert status == 422 and f"{damaged}/model.safetensors" in detail, detail
    assert "org/model" not in detail


def test_a_view_of_a_repository(
    on_hub: Served, hub: Hub, weights: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repo("org/model")
    repo.commit(weights, "v1")
    monkeypatch.setattr(recorded, "LOOK_SECONDS", 0)
    assert put(on_hub, who=WHO, source="models/@v1").status_code == 201
    found = on_hub.ask("GET", f"/hf/views/v/resolve/main/{FILE}", WHO)
    assert found.content == weights[FILE]
    first = found.headers["x-repo-commit"]
    repo.commit(weights | {"README.md": b"new"}, "v1")
    now = on_hub.ask("HEAD", f"/hf/views/v/resolve/main/{FILE}", WHO).headers["x-repo-commit"]
    assert now != first
    assert on_hub.ask("GET", f"/hf/views/v/resolve/{first}/{FILE}", WHO).status_code == 410


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (503, 503, "cannot read models/a: the store failed, and still did after all retries; send the request again later"),
        (401, 502, "the store does not accept the credentials; ask the operator of this server, whose log has the reason"),
    ],
)  # fmt: skip
def test_a_hub_that_is_away_or_refuses(
    on_hub: Served, hub: Hub, code: int, status: int, words: str
) -> None:
    hub.faults.append(Fault("/api/models", status=code, times=None))
    told = refused(inspected(on_hub, "models/a"))
    assert told[0] == status and words in told[1], told
    assert hub.url not in told[1] and "org/model" not in told[1]


def test_paths_are_looked_up_within_calls(hub: Hub) -> None:
    """As those of views are; all threads of the root may be in such a call."""
    commit = hub.repo("org/model").commit({"a/config.json": b"{}"})
    roots = Roots.of({"models": hub_branch(HOME)})
    together = Barrier(CALLS_AT_ONCE)

    def look() -> str:
        together.wait()
        return str(roots.recheck("models/a"))

    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        asked = [pool.submit(roots.ask, "models/a", look) for _ in range(CALLS_AT_ONCE)]
        assert {each.result() for each in asked} == {f"{HOME}@{commit}/a"}
