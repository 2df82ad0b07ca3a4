"""Plans by HTTP: the object of the command, refusals of a conversion, and the smallest memory that works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.api.openapi.description import MULTI_PLAN, PLAN

import reshard
from reshard.answers.record import answer_of
from tests.server.served import Served

URL = "/v1/plans"
LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}],
}
ONE = {"source": "data/run/1", "target": "data/out", "layout": LAYOUT, "max_memory": "64MiB", "workers": 2}  # fmt: skip


def test_the_object_of_the_command(served: Served, run_of: Path) -> None:
    body = {**ONE, "cast": [["kernel", "bfloat16"]], "rename": [["^params/", "p/"]], "shares": True}
    answer = served.ask("POST", URL, json={**body, "restart": True, "verify": "readback"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    PLAN.model_validate(found)
    planned = reshard.plan(
        run_of / "1", run_of.parent / "out", layout=LAYOUT, max_memory="64MiB", workers=2,
        cast=[("kernel", "bfloat16")], rename=[("^params/", "p/")],
    )  # fmt: skip
    expected = json.loads(json.dumps(answer_of("plan", planned.with_shares())))
    free = {"free_bytes": None}
    assert {**found, **free} == {**expected, "source": "data/run/1", "target": "data/out", **free}
    assert {t["target_dtype"] for t in found["tensors"] if "kernel" in t["target"]} == {"bfloat16"}
    assert not (run_of.parent / "out").exists()


def test_several_targets(served: Served, run_of: Path) -> None:
    served.ask("PUT", "/v1/layouts/serving", json={"layout": LAYOUT})
    targets = [
        {"target": "data/a", "layout": "serving"},
        {"target": "data/b", "mesh": "x=2", "cast": [["kernel", "bfloat16"]]},
    ]
    body = {"source": "data/run/1", "targets": targets, "max_memory": "64MiB", "workers": 2}
    answer = served.ask("POST", URL, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    MULTI_PLAN.model_validate(found)
    planned = reshard.plan_all(
        run_of / "1",
        [
            reshard.Target(run_of.parent / "a", layout=LAYOUT),
            reshard.Target(run_of.parent / "b", mesh="x=2", cast=[("kernel", "bfloat16")]),
        ],
        max_memory="64MiB",
        workers=2,
    )
    expected = json.loads(json.dumps(answer_of("plan", planned)))
    for one, target in zip(expected["plans"], ("data/a", "data/b"), strict=True):
        one |= {"source": "data/run/1", "target": target, "free_bytes": None}
    for one in found["plans"]:
        one["free_bytes"] = None
    assert found == {**expected, "source": "data/run/1"}
    assert found["repeated_bytes"] == 0
    assert not (run_of.parent / "a").exists()


@pytest.mark.usefixtures("run_of")
def test_one_of_several_targets_that_is_refused(served: Served) -> None:
    body = {"source": "data/run/1", "targets": [{"target": "data/a"}, {"target": "other/b"}]}
    found = served.ask("POST", URL, json=body).json()
    assert (found["status"], found["field"]) == (404, "/targets/1/target")
    body = {"source": "data/run/1", "targets": [{"target": "data/a"}, {"target": "data/run/2"}]}
    found = served.ask("POST", URL, json=body).json()
    assert (found["status"], found["title"]) == (409, "The target exists"), found
    assert found["field"] == "/targets/1/target"
    assert "'data/run/2'" in found["detail"]


@pytest.mark.usefixtures("run_of")
def test_a_stored_layout(served: Served) -> None:
    served.ask("PUT", "/v1/layouts/serving", json={"layout": LAYOUT})
    found = served.ask("POST", URL, json={**ONE, "layout": "serving@1"}).json()
    kernel = next(t for t in found["tensors"] if t["target"] == "params/kernel")
    assert kernel["target_axes"] == [None, "x"]
    assert "shares" not in kernel


def test_what_fits_no_memory_is_told_the_smallest_that_does(served: Served, tmp_path: Path) -> None:
    rng = np.random.default_rng(0).random((2048, 2048), np.float32)
    reshard.save(tmp_path / "data" / "big", {"kernel": rng})
    layout = {**LAYOUT, "mesh": {"axes": ["x"], "shape": [512]}}
    body = {**ONE, "source": "data/big", "layout": layout, "max_memory": "1MiB", "workers": 1}
    answer = served.ask("POST", URL, json={**body, "compression": "gzip:1"})
    found = answer.json()
    assert (answer.status_code, found["type"]) == (422, "urn:reshard:problem:memory-budget"), found
    assert found["error"] == "MemoryBudgetError"
    enough = {**body, "compression": "gzip:1", "max_memory": found["smallest_bytes"]}
    assert served.ask("POST", URL, json=enough).status_code == 200


@pytest.mark.parametrize(
    ("members", "status", "kind", "field", "words"),
    [
        ({"source": "data/none"}, 404, "not-found", "/source", "there is nothing at 'data/none'"),
        ({"source": "other/a"}, 404, "not-found", "/source", "there is nothing at 'other/a'"),
        ({"target": "other/a"}, 404, "not-found", "/target", "there is nothing at 'other/a'"),
        ({"target": "data/.x.reshard-partial/y"}, 422, "invalid-request", "/target", "choose another target"),
        ({"target": "data/run/2"}, 409, "target-exists", "/target", "the target 'data/run/2' exists already"),
        ({"source": "data/run"}, 422, "not-a-checkpoint", "/source", "name one of them: data/run/2"),
        ({"layout": "none"}, 422, "layout", "/layout", "is not stored"),
        ({"mesh": "x=3"}, 422, "layout", "/layout", "'params/kernel'"),
        ({"select": ["nothing-like-it"]}, 422, "plan", None, "nothing-like-it"),
        ({"cast": [["kernel", "float17"]]}, 422, "plan", "/cast", "no such dtype"),
        ({"max_memory": "1TiB"}, 422, "invalid-request", "/max_memory", "above this server's ceiling"),
        ({"shares": 1}, 422, "invalid-request", "/shares", "expected true or false"),
        ({"labels": {}}, 422, "invalid-request", "/labels", "there is no member of this name"),
    ],
)  # fmt: skip
def test_refused_as_the_conversion_would_be(
    served: Served, run_of: Path, members: dict[str, Any], status: int, kind: str, field: str | None, words: str
) -> None:  # fmt: skip
    answer = served.ask("POST", URL, json={**ONE, **members})
    found = answer.json()
    assert (answer.status_code, found["type"]) == (status, f"urn:reshard:problem:{kind}"), found
    assert words in found["detail"]
    assert found.get("field") == field
    assert str(run_of.parent.parent) not in answer.text


@pytest.mark.usefixtures("run_of")
def test_a_token_that_may_only_read_a_root_plans_nothing_into_it(
    served: Served,
) -> None:
    answer = served.ask("POST", URL, "eve", json=ONE)
    assert (answer.status_code, answer.json()["field"]) == (404, "/target")


@pytest.mark.usefixtures("run_of")
def test_ceilings_are_the_default(serve: Callable[..., Served]) -> None:
    served = serve(max_memory=32 << 20, workers=1)
    body = {k: v for k, v in ONE.items() if k not in ("max_memory", "workers")}
    totals = served.ask("POST", URL, json=body).json()["totals"]
    assert (totals["max_memory"], totals["workers"]) == (32 << 20, 1)
