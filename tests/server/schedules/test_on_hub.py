"""Schedules that publish on the hub: a branch for each step, in a root that is a repository; the oldest branches are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.errors.problems import ProblemError

import reshard
from reshard.storage.hub import client
from reshard.storage.hub.store import hub_branch, remove_branch
from tests.checkpoint_files import files_of
from tests.emulators.hub import Fault, Hub
from tests.orbax_trees import save_pytree
from tests.server.schedules.bench import Bench
from tests.server.schedules.carrying_out import carry_out

BRANCHES: dict[str, Any] = {"targets": [{"target": "releases/@step-{step}"}], "token": "root"}


@pytest.fixture
def published(bench: Bench, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The root ``releases`` is a repository."""
    hub.tokens["hf_writer"] = frozenset()
    hub.writers.add("hf_writer")
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    roots = {"data": str(bench.data), "releases": "hf://org/model"}
    bench.one = bench.process("two", roots=roots)
    return bench


def convert(bench: Bench, run: Path, *steps: int) -> None:
    for step in steps:
        save_pytree(run / str(step), {"w": np.full(8, step, np.float32)})
        bench.tick()
        carry_out(bench, str(step))
        bench.settle()


def branches(hub: Hub) -> set[str]:
    return {*hub.repo("org/model").refs} - {"main"}


def test_each_step_is_a_branch(published: Bench, hub: Hub, run: Path, tmp_path: Path) -> None:
    published.put(**BRANCHES)
    convert(published, run, 1, 2)
    repo = hub.repo("org/model")
    assert branches(hub) == {"step-1", "step-2"}
    for step in (1, 2):
        expected = tmp_path / str(step)
        reshard.convert(run / str(step), expected, to="safetensors")
        found = repo.commits[repo.refs[f"step-{step}"]]
        assert found["model.safetensors"] == (expected / "model.safetensors").read_bytes()
        assert {*found} == {*files_of(expected), ".gitattributes"}


def test_the_oldest_branches_are_removed(published: Bench, hub: Hub, run: Path) -> None:
    published.put(keep=1, **BRANCHES)
    convert(published, run, 1, 2)
    assert branches(hub) == {"step-2"}
    hub.repo("org/model").commit({"README.md": b"somebody's"}, "step-2")
    convert(published, run, 3, 4)
    assert branches(hub) == {"step-2", "step-4"}


def test_a_branch_that_somebody_removed(published: Bench, hub: Hub, run: Path) -> None:
    published.put(keep=1, **BRANCHES)
    convert(published, run, 1)
    del hub.repo("org/model").refs["step-1"]
    convert(published, run, 2)
    assert branches(hub) == {"step-2"}


def test_a_removal_that_the_hub_refuses_is_tried_again(
    published: Bench, hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_S", 0.1)
    published.put(keep=1, **BRANCHES)
    convert(published, run, 1)
    hub.writers.clear()
    hub.faults.append(Fault("/branch/step-1", status=403))
    hub.writers.add("hf_writer")
    convert(published, run, 2)
    assert branches(hub) == {"step-1", "step-2"}
    published.settle()
    assert branches(hub) == {"step-2"}


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        (
            {"targets": [{"target": "releases/step-{step}"}], "keep": 2},
            "/targets/0/target",
            "names no branch of its own, so that keep could not remove it; name one, such as releases/@step-{step}, or leave keep out",
        ),
        (
            {"targets": [{"target": "releases/@main", "overwrite": True}], "keep": 2},
            "/targets/0/target",
            "names no branch of its own",
        ),
        (
            {"targets": [{"target": "releases/@step-{step}/weights"}], "keep": 2},
            "/targets/0/target",
            "names no branch of its own",
        ),
        (
            {
                "targets": [{"target": "releases/@a/weight_v{version}", "to": "safetensors"}],
                "delta": {},
            },
            "/targets/0/target",
            "the hub takes whole conversions only, but this schedule publishes versions (delta); name a folder or a bucket",
        ),
    ],
)
def test_what_the_hub_cannot_do(published: Bench, body: dict, field: str, text: str) -> None:
    with pytest.raises(ProblemError) as caught:
        published.put(**BRANCHES | body)
    assert caught.value.field == field and text in caught.value.detail


def test_a_folder_of_a_branch_is_not_removed_with_it(published: Bench, hub: Hub) -> None:
    """In a root with a branch, ``@`` begins the name of a folder."""
    roots = {"data": str(published.data), "releases": "hf://org/model@prod"}
    published.one = published.process("three", roots=roots)
    with pytest.raises(ProblemError, match="names no branch of its own"):
        published.put(keep=1, **BRANCHES)
    commit = hub.repo("org/model").commit({"a/b": b"x"}, "prod")
    assert not remove_branch(hub_branch("hf://org/model@prod/@step-1"), commit)
    assert not remove_branch(hub_branch("hf://org/model@prod"), "0" * 40)
    assert branches(hub) == {"prod"}
    assert remove_branch(hub_branch("hf://org/model@prod"), commit)
    assert branches(hub) == set()


def test_a_name_that_is_no_branch(published: Bench) -> None:
    with pytest.raises(ProblemError) as caught:
        published.put(**BRANCHES | {"targets": [{"target": "releases/@../{step}"}]})
    assert "releases" in caught.value.detail and "org/model" not in caught.value.detail


def test_a_folder_of_each_step_on_one_branch(published: Bench, hub: Hub, run: Path) -> None:
    published.put(**BRANCHES | {"targets": [{"target": "releases/@all/{step}"}]})
    convert(published, run, 1, 2)
    repo = hub.repo("org/model")
    weights = {path for path in repo.commits[repo.refs["all"]] if path.endswith(".safetensors")}
    assert weights == {"1/model.safetensors", "2/model.safetensors"}
