"""The versions of weights in a folder, by HTTP and as a page."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest

import reshard
from tests.delta_layout import bytes_of, changed, write_delta, write_full
from tests.server.pages.browser import Browser
from tests.server.served import Served

LIKE = {"up.weight": np.arange(600, dtype="f4"), "b": np.arange(9, dtype="i4")}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A full version 1, deltas 2 and 3 on it by reshard, and one of another writer whose base is missing."""
    folder = tmp_path / "data" / "run" / "published"
    state = bytes_of(LIKE)
    write_full(folder / "weight_v000001", state, LIKE)
    for number in (2, 3):
        state = changed(state, 0.02, number)
        write_full(tmp_path / f"full{number}", state, LIKE)
        old = folder / "weight_v000001" if number == 2 else tmp_path / "full2"
        reshard.delta(old, tmp_path / f"full{number}", folder / f"weight_v{number:06}")
    write_delta(folder, 9, state, changed(state, 0.02, 9))
    return folder


def ask(served: Served, path: str, who: str | None = "ann") -> httpx.Response:
    return served.ask("GET", f"/v1/checkpoints:versions?checkpoint={path}", who)


def test_the_chain(served: Served, published: Path) -> None:
    answer = ask(served, "data/run/published")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["command"], found["uri"]) == ("inspect", "data/run/published")
    assert [
        (v["name"], v["kind"], v["base_version"], v["is_needed"]) for v in found["versions"]
    ] == [
        ("weight_v000001", "full", "", True),
        ("weight_v000002", "delta", "000001", True),
        ("weight_v000003", "delta", "000002", True),
        ("weight_v000009", "delta", "000008", False),
    ]
    assert found["versions"][3]["problem"] == "the version 000008 is missing"
    only = served.ask(
        "GET", "/v1/checkpoints:versions?checkpoint=data/run/published&fields=versions.kind"
    )
    assert only.json() == {"versions": [{"kind": v["kind"]} for v in found["versions"]]}
    assert str(published.parent) not in answer.text


def test_versions_of_any_id_are_listed(served: Served, tmp_path: Path) -> None:
    folder, state = tmp_path / "data" / "run" / "express", bytes_of(LIKE)
    write_full(folder / "base-a", state, LIKE)
    for version, base in (("zeta", "base-a"), ("alpha", "zeta")):
        write_delta(folder, version, state, state, base=base)
    found = ask(served, "data/run/express").json()["versions"]
    assert [one["version"] for one in found] == ["base-a", "zeta", "alpha"]
    listed = served.ask("GET", "/v1/checkpoints?root=data").json()["checkpoints"]
    assert [(c["path"], c["versions"]) for c in listed if c["kind"] == "versions"] == [
        ("data/run/express", ["alpha", "base-a", "zeta"])
    ]


def test_one_delta_has_the_bytes_of_each_tensor(served: Served, published: Path) -> None:
    [one] = ask(served, "data/run/published/weight_v000002").json()["versions"]
    (tensor,) = [t for t in one["tensors"] if t["name"] == "up.weight"]
    assert (tensor["dtype"], tensor["shape"], tensor["elements"]) == ("float32", [600], 600)
    assert 0 < tensor["changed"] < 600
    assert one["changed_elements"] >= tensor["changed"]
    [foreign] = ask(served, "data/run/published/weight_v000009").json()["versions"]
    assert foreign["tensors"] == []
    assert foreign["changed_elements"] is None
    assert published.exists()


@pytest.mark.parametrize(
    ("path", "who", "status", "said"),
    [
        ("data/nothing", "ann", 404, "there is nothing at 'data/nothing'; check the path"),
        ("other/x", "ann", 404, "there is nothing at 'other/x' that this token may use; check root and path"),
        ("data/run/empty", "ann", 422,
         "data/run/empty holds no versions of weights: expected folders such as weight_v000007, or the folder of a delta"),
        ("data/run", None, 401, "token"),
    ],
)  # fmt: skip
def test_where_there_are_none(
    served: Served, published: Path, path: str, who: str | None, status: int, said: str
) -> None:
    (published.parent / "empty").mkdir()
    answer = ask(served, path, who)
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text


def test_links_lead_to_no_other_folder(served: Served, published: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"metadata": {"delta_encoding": "xor"}, "password": 1}')
    index = published / "weight_v000003" / "model.safetensors.index.json"
    index.unlink()
    index.symlink_to(secret)
    answer = ask(served, "data/run/published")
    (one,) = [v for v in answer.json()["versions"] if v["name"] == "weight_v000003"]
    assert one["kind"] == "unusable"
    assert str(tmp_path) not in answer.text and "password" not in answer.text


def test_the_page_shows_the_chain(ann: Browser, published: Path) -> None:
    listed = ann.go("/checkpoints?root=data")
    assert "/versions?path=data/run/published" in listed.links
    page = ann.go("/versions?path=data/run/published")
    assert published.exists()
    assert page.html.count("<meter") == 4
    assert "the version 000008 is missing" in page.text
    one = ann.go("/versions?path=data/run/published/weight_v000002")
    assert "000002 on 000001" in one.text
    assert one.html.count("<meter") == 2
    foreign = ann.go("/versions?path=data/run/published/weight_v000009")
    assert "does not record how much changed" in foreign.text
    none = ann.go("/versions?path=data/none")
    assert "The versions cannot be read" in none.text


def test_a_hostile_name_is_text(ann: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "run" / "<b>x"
    like = {"<script>": np.arange(9, dtype="i4")}
    state = bytes_of(like)
    for name, content in (("old", state), ("new", changed(state, 0.5, 1))):
        write_full(tmp_path / name, content, like)
    reshard.delta(tmp_path / "old", tmp_path / "new", folder / "weight_v000001")
    page = ann.go("/versions?path=data/run/%3Cb%3Ex/weight_v000001")
    assert "<b>x" not in page.html and "<script>" in page.text
    assert "&lt;script&gt;" in page.html
