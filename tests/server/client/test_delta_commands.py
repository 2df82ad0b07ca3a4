"""``delta``, ``apply`` and ``verify --delta`` with ``--server``: the same reports and exit codes as here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.client import Client

import reshard
from reshard.cli.app import run
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

ANN = TOKENS["ann"][0]
RNG = np.random.default_rng(19)
WEIGHTS = RNG.normal(size=(32, 8)).astype(np.float32)
MAP = "map: [{from: up, to: up.weight, shape: 'i o -> o i'}]\n"
FULL, DELTA = "data/published/weight_v000001", "data/published/weight_v000002"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", ANN)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served") / "data"


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[Live]:
    for step in (1, 2):
        made = WEIGHTS.copy()
        made[step] += 1
        reshard.save(data / "run" / str(step), {"up": made})
    reshard.convert(data / "run" / "2", data / "wrong", to="safetensors", map=MAP)
    with live(data.parent, requests_per_minute=10**6) as server:
        with Client(server.url, ANN) as client:
            client.convert("data/run/1", FULL, to="safetensors", map=MAP).wait()
            client.delta(FULL, "data/run", DELTA, step=2, map=MAP).wait()
            client.maps.put("to_hf", MAP)
        yield server


def words_of(report: dict[str, Any]) -> dict[str, Any]:
    """The report without times and places."""
    return {k: v for k, v in report.items() if k not in ("old", "new", "target", "seconds")}


def test_a_delta(
    served: Live, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to_hf = tmp_path / "to_hf.yaml"
    to_hf.write_text(MAP)
    more = ["--map", str(to_hf), "--step", "2", "--checksum", "blake3", "--json"]
    here = tmp_path / "weight_v000002"
    assert run(["delta", str(data.parent / FULL), str(data / "run"), str(here), *more]) == 0
    said_here = json.loads(capsys.readouterr().out)
    there = ["delta", FULL, "data/run", "data/made/weight_v000002", *more, "--server", served.url]
    assert run(there) == 0
    said_there = json.loads(capsys.readouterr().out)
    assert words_of(said_here) == words_of(said_there)
    made = data / "made" / "weight_v000002"
    assert (made / "model.safetensors.index.json").read_bytes() == (
        here / "model.safetensors.index.json"
    ).read_bytes()


def test_a_delta_by_a_stored_map(served: Live, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["delta", FULL, "data/run/2", "data/stored/weight_v000002", "--map", "to_hf"]
    assert run([*words, "--server", served.url]) == 0
    shown = capsys.readouterr().out
    assert "data/stored/weight_v000002" in shown
    assert "1 tensor of 1 changed" in " ".join(shown.split())


def test_it_is_among_the_jobs(served: Live, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["delta", FULL, "data/run/2", "data/listed/weight_v000002", "--map", "to_hf"]
    assert run([*words, "--server", served.url, "--quiet"]) == 0
    assert run(["jobs", "list", "--server", served.url, "--json"]) == 0
    (found,) = (
        one
        for one in json.loads(capsys.readouterr().out)["conversions"]
        if one["request"]["target"] == words[3]
    )
    assert run(["jobs", "list", "--server", served.url]) == 0
    assert f"{words[3]} (delta)" in " ".join(capsys.readouterr().out.split())
    assert run(["jobs", "show", found["id"], "--server", served.url]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"data/run/2 → {words[3]} delta from {FULL} created" in shown
    assert "1 tensor of 1 changed" in shown
    assert run(["jobs", "show", found["id"], "--server", served.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"][0]["all_tensors"] == 1
    assert run(["jobs", "retry", found["id"], "--server", served.url]) == 1
    assert f"reshard jobs show {found['id']} says how it stands" in capsys.readouterr().err


def test_applied(
    served: Live, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--to", "orbax", "--cast", "float=bfloat16", "--json"]
    base, delta = str(data.parent / FULL), str(data.parent / DELTA)
    assert run(["apply", base, delta, str(tmp_path / "here"), *more]) == 0
    said_here = json.loads(capsys.readouterr().out)
    assert run(["apply", FULL, DELTA, "data/there", *more, "--server", served.url]) == 0
    said_there = json.loads(capsys.readouterr().out)
    assert said_there["command"] == "apply"
    assert said_there["tensors"] == said_here["tensors"]
    made, expected = reshard.restore(data / "there"), reshard.restore(tmp_path / "here")
    np.testing.assert_array_equal(made["up.weight"], expected["up.weight"])


def test_a_wrong_base_is_a_difference(
    served: Live, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, delta = str(data / "wrong"), str(data.parent / DELTA)
    for words in ([base, delta, str(tmp_path / "here")], ["data/wrong", DELTA, "data/none", "--server", served.url]):  # fmt: skip
        assert run(["apply", *words]) == 3
        assert "so that the base is not the one that the delta was made of" in capsys.readouterr().err  # fmt: skip
    assert not (data / "none").exists()


def test_verified(served: Live, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", FULL, "--delta", DELTA, "--server", served.url]) == 0
    there = capsys.readouterr().out
    base, delta = str(data.parent / FULL), str(data.parent / DELTA)
    assert run(["verify", base, "--delta", delta]) == 0
    here = capsys.readouterr().out.replace(f"{data.parent}/", "")
    assert there.split() == here.split()
    assert run(["verify", "data/wrong", "--delta", DELTA, "--server", served.url]) == 3
    capsys.readouterr()
    assert run(["verify", FULL, "--delta", DELTA, DELTA, FULL, "--server", served.url]) == 2
    assert (
        "but A is compared with one checkpoint; give each delta by its own --delta"
        in capsys.readouterr().err
    )


def test_the_rules_of_a_layout_file_are_sent(
    served: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "layout.yaml"
    file.write_text("mesh: {axes: [x], shape: [2]}\nrules: []\nrename: [{match: up, to: down}]\n")
    words = ["data/run/1", "data/run/2", "data/laid/weight_v000002", "--layout", str(file)]
    assert run(["delta", *words, "--server", served.url, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["tensors"]) == ["down"]
