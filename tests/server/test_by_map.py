"""Maps by HTTP: in plans, conversions and comparisons, as an object or as text, never as a path of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import reshard
from reshard.cli.app import run
from tests.server.live import Live, live
from tests.server.tokens import bearer

W = np.arange(24, dtype=np.float32).reshape(4, 6)
TEXT = "map:\n- {from: w, to: served.weight, shape: a (b c) -> (b a) c}\n"
OBJECT = {"map": [{"from": "w", "to": "served.weight", "shape": "a (b c) -> (b a) c"}]}
EXPECTED = W.reshape(4, 2, 3).transpose(1, 0, 2).reshape(8, 3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "data").mkdir()
    reshard.save(folder / "data" / "a", {"w": W})
    (folder / "data" / "map.yaml").write_text(TEXT)
    with live(folder, requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


@pytest.mark.parametrize("given", [TEXT, OBJECT], ids=["text", "object"])
def test_a_plan_says_what_becomes_what(client: httpx.Client, given: Any) -> None:
    body = {"source": "data/a", "target": "data/b", "map": given, "sizes": {"b": 2}}
    answer = client.post("/v1/plans", json=body)
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert plan["map"]["targets"] == 1
    assert plan["tensors"][0]["sources"] == ["w"]
    assert plan["tensors"][0]["target"] == "served.weight"


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        (
            {"map": "/etc/passwd"},
            "/map",
            "the map '/etc/passwd' is not stored; store it, or give the map's content, as an object or as text of several lines, or the name of a recipe",
        ),
        ({"map": "map.yaml"}, "/map", "the map 'map.yaml' is not stored"),
        ({"map": {"map": []}}, "/map", "expected a list of at least one rule"),
        ({"map": TEXT.replace("->", "=>")}, "/map", "map:2: map[0].shape: "),
        ({"map": TEXT, "sizes": {"b": 0}}, "/sizes/b", ""),
        ({"sizes": {"b": 2}}, "/sizes", "sizes are for a map, but no map is given"),
        ({"reverse": True}, "/reverse", "reverse is for a map, but no map is given"),
    ],
)
def test_maps_that_are_refused_at_once(
    client: httpx.Client, more: Any, field: str, said: str
) -> None:
    answer = client.post(
        "/v1/conversions", json={"source": "data/a", "target": "data/refused", **more}
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert said in answer.text.replace('\\"', '"')


def test_a_size_of_the_mesh(client: httpx.Client) -> None:
    text = f"rules: [{{match: served, axes: [b]}}]\nsizes: {{b: mesh}}\n{TEXT}"
    body = {"source": "data/a", "target": "data/b", "map": text, "mesh": "b=2"}
    answer = client.post("/v1/plans", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["map"]["targets"] == 1
    answer = client.post("/v1/plans", json={**body, "sizes": {"b": 3}})
    assert answer.status_code == 422
    assert "the size 'b' is given as 3, but the mesh has 2 along 'b'" in answer.json()["detail"]
    del body["mesh"]
    answer = client.post("/v1/plans", json=body)
    assert answer.status_code == 422
    assert "map: the sizes b are those of the target's mesh" in answer.json()["detail"]


def test_a_map_that_does_not_fit_says_so_in_the_plan(client: httpx.Client) -> None:
    body = {"source": "data/a", "target": "data/b", "map": TEXT}
    answer = client.post("/v1/plans", json=body)
    assert answer.status_code == 422
    assert "the size of 'b' does not follow from the shapes; give it (sizes)" in answer.json()["detail"]  # fmt: skip


def test_the_command_sends_the_file_and_the_server_converts_and_compares(
    server: Live,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", bearer("bob")["Authorization"].split()[1])
    map_file = tmp_path / "local.yaml"
    map_file.write_text(TEXT)
    mapped = ["--map", str(map_file), "--size", "b=2", "--server", server.url]
    assert run(["convert", "data/a", "data/made", "--to", "safetensors", *mapped]) == 0
    assert (
        "map: 1 tensor → 1, every element used and written once; 1 exact" in capsys.readouterr().out
    )
    made = load_file(next((server.log.parent / "data" / "made").glob("*.safetensors")))
    np.testing.assert_array_equal(made["served.weight"], EXPECTED)
    assert run(["verify", "data/a", "data/made", *mapped]) == 0
    save_file({"served.weight": EXPECTED + 1}, server.log.parent / "data" / "other.safetensors")
    assert run(["verify", "data/a", "data/other.safetensors", *mapped]) == 3
    assert "differ from what the map makes" in capsys.readouterr().out


def test_a_path_is_no_map_of_a_comparison(client: httpx.Client) -> None:
    answer = client.post(
        "/v1/checkpoints:verify",
        json={"checkpoint": "data/a", "other": "data/a", "map": "map.yaml"},
    )
    assert answer.status_code == 422
    assert answer.json()["field"] == "/map"
