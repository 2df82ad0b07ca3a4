"""``step`` and ``item`` in requests: a training run's step, and one item of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from tests.server.checkpoint import TREE
from tests.server.served import Served


def ask(served: Served, verb: str, **body: Any) -> Any:
    return served.ask("POST", f"/v1/checkpoints:{verb}", json={"checkpoint": "data/run", **body})


def convert(served: Served, **body: Any) -> Any:
    given = {"source": "data/run", "target": "data/out", **body}
    return served.ask(
        "POST", "/v1/conversions", json=given, headers={"Idempotency-Key": body.get("target", "k")}
    )


@pytest.fixture
def items(tmp_path: Path) -> None:
    """``data/items`` with step 3, of the items model and ema."""
    args = ocp.args.Composite(
        model=ocp.args.StandardSave({"w": np.ones(4, np.float32)}),
        ema=ocp.args.StandardSave({"w": np.zeros(4, np.float32)}),
    )
    with ocp.CheckpointManager(tmp_path / "data" / "items") as manager:
        manager.save(3, args=args)


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize(("step", "found"), [(1, 1), (2, 2), ("latest", 2)])
def test_inspected_and_verified(served: Served, step: int | str, found: int) -> None:
    inspected = ask(served, "inspect", step=step)
    assert inspected.status_code == 200, inspected.text
    assert inspected.json()["uri"] == f"data/run/{found}"
    verified = ask(served, "verify", step=step, other="data/run/1").json()
    assert (verified["a"], verified["b"], verified["equal"]) == (f"data/run/{found}", "data/run/1", True)  # fmt: skip
    assert ask(served, "fingerprint", step=step, overwrite=True).json()["uri"] == f"data/run/{found}"  # fmt: skip


@pytest.mark.usefixtures("items")
def test_one_item(served: Served) -> None:
    found = ask(served, "inspect", checkpoint="data/items", step="latest", item="ema").json()
    assert found["uri"] == "data/items/3/ema"
    assert [tensor["name"] for tensor in found["tensors"]] == ["w"]
    answer = ask(served, "inspect", checkpoint="data/items", step=3, item="opt")
    assert (answer.status_code, answer.json()["field"]) == (422, "/item")
    assert "data/items/3 has no item 'opt'" in answer.json()["detail"]


def test_a_conversion_is_of_the_step_that_was_the_latest(served: Served, run_of: Path) -> None:
    made = convert(served, step="latest")
    assert made.status_code == 202, made.text
    assert made.json()["request"]["source"] == "data/run/2"
    assert "step" not in made.json()["request"]
    reshard.save(run_of / "3", TREE)
    again = convert(served, step="latest")
    assert (again.status_code, again.json()["id"]) == (202, made.json()["id"])
    other = convert(served, step=2)
    assert (other.status_code, other.json()["type"]) == (
        422,
        "urn:reshard:problem:idempotency-key-reused",
    )
    newer = convert(served, step="latest", target="data/newer")
    assert newer.json()["request"]["source"] == "data/run/3"


@pytest.mark.usefixtures("run_of")
def test_planned_previewed_and_read(served: Served) -> None:
    body = {"source": "data/run", "target": "data/out", "step": "latest"}
    assert served.ask("POST", "/v1/plans", json=body).json()["source"] == "data/run/2"
    seen = {"checkpoint": "data/run", "step": 1, "mesh": "x=2"}
    assert served.ask("POST", "/v1/layouts:preview", json=seen).json()["source"] == "data/run/1"
    params = {"checkpoint": "data/run", "step": "latest", "name": "params/bias"}
    read = served.ask("GET", "/v1/tensors", params=params)
    assert read.status_code == 200, read.text
    np.testing.assert_array_equal(np.frombuffer(read.content, np.float32), TREE["params"]["bias"])


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"step": 7}, "/step", "data/run has no step 7; it is a training run's folder with steps 1, 2"),
        ({"checkpoint": "data/run/1", "step": 1}, "/step", "data/run/1 is a checkpoint, not the folder of a training run"),
        ({"step": -1}, "/step", "-1"),
        ({"step": "newest"}, "/step", "newest"),
        ({"step": 1, "item": "a/b"}, "/item", "has no item 'a/b'"),
    ],
)  # fmt: skip
def test_refused(
    served: Served, tmp_path: Path, body: dict[str, Any], field: str, words: str
) -> None:
    answer = ask(served, "inspect", **body)
    problem = answer.json()
    assert answer.status_code == 422, answer.text
    assert field in (problem.get("field") or answer.text)
    assert words in answer.text
    assert str(tmp_path) not in answer.text


def test_a_step_that_leads_out_is_no_step(served: Served, run_of: Path, tmp_path: Path) -> None:
    reshard.save(tmp_path / "outside", TREE)
    (run_of / "9").symlink_to(tmp_path / "outside")
    answer = ask(served, "inspect", step=9)
    assert (answer.status_code, answer.json()["field"]) == (422, "/step")
    assert str(tmp_path) not in answer.text
