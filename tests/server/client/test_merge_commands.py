"""``merge`` with ``--server``: the same bits and report as here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from reshard_server.client import Client

import reshard
from reshard.cli.app import run
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

ANN = TOKENS["ann"][0]
STEPS = ["data/run/1", "data/run/2", "data/run/3"]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", ANN)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served") / "data"


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[Live]:
    rng = np.random.default_rng(3)
    for step in (1, 2, 3):
        weights = rng.normal(size=(16, 8)).astype(np.float32)
        reshard.save(data / "run" / str(step), {"w": weights, "count": np.int32(step)})
    with live(data.parent, requests_per_minute=10**6) as server:
        yield server


def test_a_merge(
    served: Live, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = [str(data / "run" / name) for name in "123"]
    more = ["--weights", "1,2,3", "--from", "2", "--json"]
    assert run(["merge", *here, str(tmp_path / "here"), *more]) == 0
    said = json.loads(capsys.readouterr().out)
    assert run(["merge", *STEPS, "data/there", *more, "--server", served.url]) == 0
    there = json.loads(capsys.readouterr().out)
    assert there["command"] == "merge"
    assert there["merged"] == said["merged"] == "averaged 1 tensor of 3 checkpoints, with the weights 0.166667, 0.333333, 0.5; copied 1"  # fmt: skip
    found, wanted = reshard.restore(data / "there"), reshard.restore(tmp_path / "here")
    assert found["w"].tobytes() == wanted["w"].tobytes()
    assert found["count"] == 2


def test_task_arithmetic(served: Live, data: Path) -> None:
    more = ["--base", STEPS[2], "--scale", "0.5", "--from", "1", "--quiet"]  # fmt: skip
    assert run(["merge", *STEPS[:2], "data/sum", *more, "--server", served.url]) == 0
    w = [np.asarray(reshard.restore(data / "run" / n)["w"], np.float64) for n in "123"]
    wanted = (w[2] + 0.5 * ((w[0] - w[2]) + (w[1] - w[2]))).astype(np.float32)
    found = reshard.restore(data / "sum")["w"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_refusals(served: Live, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = served.url
    for words, code, message in (
        ((*STEPS[:2], "data/no"), 3, "say which checkpoint it is taken from, by its number from 1"),
        ((*STEPS[:2], "data/no", "--weights", "1"), 1, "1 weights are given for 2 checkpoints"),
        ((*STEPS[:2], STEPS[1]), 1, "is the source itself; choose another target"),
        (("data/run/1=a.yaml", "data/run/2", "data/no"), 2, "the map in data/run/1=a.yaml is of this host, but --server lets a server do the work; leave it out, or leave --server out"),
        (("data/run", "data/no", "--last", "2"), 2, "--last is of this host, but --server lets a server do the work; leave it out"),
    ):  # fmt: skip
        assert run(["merge", *words, "--server", url]) == code, message
        assert message in " ".join(capsys.readouterr().err.split())
    body = {"source": STEPS[0], "target": "data/no", "merge": {"others": STEPS[1:]}}
    with Client(url, ANN) as client:
        for name, value in (("parts", 2), ("deltas", ["data/run/3"])):
            with pytest.raises(Exception, match=f"{name} and merge are both given, but checkpoints are merged by one process, as they are; leave {name} out"):  # fmt: skip
                client.convert(**{**body, name: value})
        with pytest.raises(Exception, match="data/run/9"):
            client.convert(**{**body, "merge": {"others": ["data/run/9"]}}).wait()
    assert not (data / "no").exists()
