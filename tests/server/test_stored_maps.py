"""Maps carried out, given or stored: conversions, comparisons, the client, the command, and each new step of a training run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from reshard_server.client import Client
from safetensors.numpy import load_file

import reshard
from reshard.cli.app import run
from reshard.errors import ReshardError
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

E, L, H = 6, 2, 4
QUERY = np.arange(E * L * H, dtype=np.float32).reshape(E, L, H)
RULE = {"from": "q", "to": "layers.{l}.q.weight", "shape": "e l h -> h e"}
MESH = {"mesh": {"model": 2}, "rules": [{"match": "q[.]weight$", "axes": ["model"]}]}
GROUPED = "map:\n- {from: w, to: served.weight, shape: a (b c) -> (b a) c}\n"
TEXT = "map:\n- {from: q, to: 'layers.{l}.q.weight', shape: e l h -> h e}\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("served")
    reshard.save(folder / "data" / "a", {"q": QUERY})
    reshard.save(folder / "data" / "one", {"w": QUERY[:, 0]})
    with live(folder, requests_per_minute=10**6, max_growth=4) as found:
        yield found


@pytest.fixture
def client(server: Live) -> Iterator[Client]:
    with Client(server.url, TOKENS["ann"][0]) as found:
        yield found


@pytest.fixture
def http(server: Live) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture
def data(server: Live) -> Path:
    return server.log.parent / "data"


def assert_made(target: Path, scale: float = 1.0) -> None:
    found = {k: v for file in target.glob("*.safetensors") for k, v in load_file(file).items()}
    assert sorted(found) == [f"layers.{i}.q.weight" for i in range(L)]
    for i in range(L):
        np.testing.assert_array_equal(found[f"layers.{i}.q.weight"], QUERY[:, i].T * scale)


def test_the_client_stores_and_names_maps(client: Client, data: Path) -> None:
    stored = client.maps.put("to_hf", {"map": [RULE]})
    assert (stored.name, stored.version, stored.map) == ("to_hf", 1, {"map": [RULE]})
    assert client.maps.put("to_hf", TEXT).version == 2
    assert client.maps.get("to_hf@2").map == TEXT
    assert [m.name for m in client.maps.each()] == [m.name for m in client.maps.list().maps]
    assert [v.version for v in client.maps.each_version("to_hf")] == [2, 1]
    assert [v.version for v in client.maps.versions("to_hf").versions] == [2, 1]
    planned = client.plans.create("data/a", "data/c", to="safetensors", map="to_hf@1")
    assert planned.map.targets == L
    done = client.convert("data/a", "data/c", to="safetensors", map="to_hf")
    done.wait(timeout=120)
    assert done.conversion.request.map == "to_hf@2"
    assert_made(data / "c")
    compared = client.checkpoints.verify("data/a", "data/c", map="to_hf")
    assert compared.equal
    client.maps.put("gone", TEXT)
    client.maps.delete("gone")
    with pytest.raises(ReshardError, match="there is no map 'gone'"):
        client.maps.get("gone")
    with pytest.raises(ReshardError, match="the map 'gone' is not stored; store it, or give"):
        client.checkpoints.verify("data/a", "data/c", map="gone")


def test_the_command_names_a_stored_map(
    server: Live,
    client: Client,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", TOKENS["ann"][0])
    monkeypatch.chdir(tmp_path)
    client.maps.put("named", TEXT)
    there = ["--map", "named", "--server", server.url]
    assert run(["convert", "data/a", "data/named", "--to", "safetensors", *there]) == 0
    assert_made(data / "named")
    (tmp_path / "local.yaml").write_text(TEXT)
    local = ["--map", "local.yaml", "--server", server.url]
    assert run(["verify", "data/a", "data/named", *local]) == 0
    reshard.convert(data / "named", data / "cast", cast={".": "float16"})
    assert run(["verify", "data/a", "data/cast", *local]) == 3
    assert run(["verify", "data/a", "data/named", *there]) == 0
    assert run(["plan", "data/a", "data/none", "--map", "unknown", "--server", server.url]) == 1
    assert "error: the map 'unknown' is not stored; store it, or give the map's content" in capsys.readouterr().err  # fmt: skip
    assert run(["plan", "data/a", "data/none", "--map", "missing.yaml", "--server", server.url]) == 1  # fmt: skip
    assert "map file 'missing.yaml' cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["layout", "stored layout", "map", "stored map", "map as text"])
def test_one_file_with_map_and_layout(client: Client, data: Path, way: str) -> None:
    both = {**MESH, "map": [RULE]}
    given: dict[str, Any] = {"layout": both}
    if way == "stored layout":
        client.layouts.put("both", both)
        given = {"layout": "both"}
    elif way == "map":
        given = {"map": both}
    elif way == "stored map":
        client.maps.put("both", both)
        given = {"map": "both@1"}
    elif way == "map as text":
        given = {
            "map": f"mesh: {{model: 2}}\nrules: [{{match: 'q[.]weight$', axes: [model]}}]\n{TEXT}"
        }
    target = f"one-{way.replace(' ', '-')}"
    planned = client.plans.create("data/a", f"data/{target}", **given)
    assert {t.target: list(t.target_axes or ()) for t in planned.tensors} == {
        f"layers.{i}.q.weight": ["model", None] for i in range(L)
    }
    (report,) = client.convert("data/a", f"data/{target}", **given).wait(timeout=120)
    assert report.map is not None and report.map.targets == L
    found = reshard.inspect(data / target)
    assert [t.spec._axes for t in found.tensors.values()] == [("model", None)] * L
    restored = reshard.restore(data / target)
    np.testing.assert_array_equal(np.asarray(restored["layers.1.q.weight"]), QUERY[:, 1].T)
    assert client.checkpoints.verify("data/a", f"data/{target}").equal


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
        ({"map": GROUPED.replace("->", "=>")}, "/map", "map:2: map[0].shape: "),
        ({"map": GROUPED, "sizes": {"b": 0}}, "/sizes/b", ""),
        ({"sizes": {"b": 2}}, "/sizes", "sizes are for a map, but no map is given"),
        ({"reverse": True}, "/reverse", "reverse is for a map, but no map is given"),
    ],
)
def test_maps_that_are_refused_at_once(
    http: httpx.Client, more: Any, field: str, said: str
) -> None:
    answer = http.post(
        "/v1/conversions", json={"source": "data/one", "target": "data/refused", **more}
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert said in answer.text.replace('\\"', '"')
    if more.get("map") == "map.yaml":
        compared = {"checkpoint": "data/a", "other": "data/a", **more}
        answer = http.post("/v1/checkpoints:verify", json=compared)
        assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_size_of_the_mesh(http: httpx.Client) -> None:
    text = f"rules: [{{match: served, axes: [b]}}]\nsizes: {{b: mesh}}\n{GROUPED}"
    body = {"source": "data/one", "target": "data/b", "map": text, "mesh": "b=2"}
    answer = http.post("/v1/plans", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["map"]["targets"] == 1
    answer = http.post("/v1/plans", json={**body, "sizes": {"b": 3}})
    assert answer.status_code == 422
    assert "the size 'b' is given as 3, but the mesh has 2 along 'b'" in answer.json()["detail"]
    del body["mesh"]
    answer = http.post("/v1/plans", json=body)
    assert answer.status_code == 422
    assert "map: the sizes b are those of the target's mesh" in answer.json()["detail"]


def test_what_one_file_may_not_be(client: Client) -> None:
    both = {**MESH, "map": [RULE]}
    client.layouts.put("both", both)
    with pytest.raises(
        ReshardError, match="layout has a map, and another one is given; leave one out"
    ):
        client.convert("data/a", "data/none", layout="both", map=TEXT)
    with pytest.raises(
        ReshardError, match="which backwards are its sources; give the file as the map"
    ):
        client.convert("data/a", "data/none", layout=both, reverse=True)
    with pytest.raises(
        ReshardError, match="has a map, which only plan, convert, restore and verify apply"
    ):
        client.layouts.preview("data/a", "both")


def test_a_target_that_grows_too_much(client: Client) -> None:
    rule = {"from": "q", "to": "q", "shape": "e l h -> e l h", "pad": {"h": "wide", "l": 4096}}
    wide: dict[str, Any] = {"map": {"map": [rule]}, "sizes": {"wide": 1 << 40}}
    said = (
        r"the target would have 96\.0 PiB, but the source has 192 B, and a target may have at most 4 times as much and 1\.00 GiB more "
        r"\(max_growth\); make pad, repeated dimensions, fill and casts smaller, or raise max_growth"
    )
    with pytest.raises(ReshardError, match=said):
        client.plans.create("data/a", "data/wide", **wide)
    with pytest.raises(ReshardError, match=said):
        client.convert("data/a", "data/wide", **wide).wait(timeout=120)
    with pytest.raises(ReshardError, match=said):
        client.convert("data/a", targets=[{"target": "data/wide", **wide}]).wait(timeout=120)
    assert client.plans.create("data/a", "data/wide", **{**wide, "sizes": {"wide": 5}}).tensors


def test_each_new_step_is_published_as_hugging_face_shards(client: Client, data: Path) -> None:
    client.maps.put("publish", f"drop: ['^opt']\n{TEXT}")
    client.schedules.put("publish", {
        "when": {"directory": "data/run", "poll_seconds": 0.2},
        "targets": [{"target": "data/hub/{step}", "to": "safetensors", "map": "publish"}],
    })  # fmt: skip
    for step in (10, 20):
        reshard.save(data / "run" / str(step), {"q": QUERY * step, "opt": QUERY})
        done = wait_for_step(client, step)
        assert_made(data / "hub" / str(step), step)
        assert (data / "hub" / str(step) / "model.safetensors").exists()
        used = client.conversions.get(done).conversion.request.map
        assert used == ("publish@1" if step == 10 else "publish@2")
        assert client.checkpoints.verify(f"data/run/{step}", f"data/hub/{step}").equal
        client.maps.put("publish", f"# once more\ndrop: ['^opt']\n{TEXT}")
    client.schedules.delete("publish")


def wait_for_step(client: Client, step: int) -> str:
    """The conversion of a step, once it has succeeded."""
    deadline = time.monotonic() + 300
    found: dict[str, Any] = {}
    while time.monotonic() < deadline:
        found = {run.key: run for run in client.schedules.runs("publish").runs}
        made = found.get(str(step))
        assert made is None or made.state not in ("failed", "cancelled"), made
        if made is not None and made.state == "succeeded":
            return str(made.conversion)
        time.sleep(0.1)
    raise AssertionError(found)
