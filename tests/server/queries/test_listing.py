"""Checkpoints below a root: found by their marks, steps together, in pages, never by a link."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as fuzzing
from hypothesis import strategies as st
from reshard_server.resources import browse as browsing
from reshard_server.resources.browse import browse

import reshard
from reshard.storage.location import locate
from tests.server.served import Served
from tests.state_files import write_state

URL = "/v1/checkpoints"


def mark(folder: Path) -> None:
    """What a checkpoint is recognised by."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("_METADATA", "_CHECKPOINT_METADATA"):
        (folder / name).write_text("{}")


def listed(served: Served, who: str = "eve", **query: Any) -> list[dict[str, Any]]:
    answer = served.ask("GET", URL, who, params={"root": "data", **query})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["checkpoints"]
    return found


def pages(served: Served, **query: Any) -> Iterator[dict[str, Any]]:
    token: dict[str, str] = {}
    while True:
        found = served.ask("GET", URL, params={"root": "data", **query, **token}).json()
        yield found
        if found["next_page_token"] is None:
            return
        token = {"page_token": found["next_page_token"]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    for name in ("run/1", "run/20", "run/3", "run/best", "run/step_x/eval", "served/a", "top", "7"):
        mark(data / name)
    mark(data / "prefixed" / "step_00000004")
    (data / "run" / "5.orbax-checkpoint-tmp-1").mkdir()
    mark(data / "run" / "6.orbax-checkpoint-tmp-1")
    mark(data / "run" / "9")
    (data / "run" / "9" / "_CHECKPOINT_METADATA").unlink()  # v1, never committed
    (data / "run" / "9" / "orbax.checkpoint").write_text("{}")
    mark(data / ".served.reshard-partial" / "checkpoint")
    mark(data / "run" / "odd%name")
    mark(tmp_path / "outside")
    (data / "link").symlink_to(tmp_path / "outside")
    (data / "inner").symlink_to("run")
    (data / "empty" / "deep").mkdir(parents=True)
    mark(data / "run" / "1" / "item")
    return data


@pytest.mark.usefixtures("data")
def test_what_is_there(served: Served) -> None:
    found = {x["path"]: (x["kind"], x["steps"], x["folders"]) for x in listed(served)}
    assert found == {
        "data/7": ("orbax", None, None),
        "data/prefixed": ("steps", [4], ["step_00000004"]),
        "data/run": ("steps", [1, 3, 20], ["1", "3", "20"]),
        "data/run/best": ("orbax", None, None),
        "data/run/step_x/eval": ("orbax", None, None),
        "data/served/a": ("orbax", None, None),
        "data/top": ("orbax", None, None),
    }
    assert list(found) == sorted(found, key=lambda path: path.split("/"))
    assert all(x["modified_at"].startswith("20") for x in listed(served))


def test_files_that_are_checkpoints(served: Served, tmp_path: Path) -> None:
    """By their names and what is in them; not those of a folder that is one checkpoint, nor links, nor half a file."""
    data = tmp_path / "data"
    for folder in ("keras", "torch", "model"):
        (data / folder).mkdir(parents=True)
    reshard.save(tmp_path / "saved", {"w": np.arange(6.0)})
    reshard.convert(tmp_path / "saved", data / "keras" / "m.weights.h5")
    write_state(data / "torch" / "b.pt", {"w": np.arange(6.0)})
    whole = (data / "torch" / "b.pt").read_bytes()
    reshard.convert(tmp_path / "saved", data / "model", to="safetensors")
    for name, content in (("a.bin", b"x" * 100), ("half.pt", whole[:-30]), (".hidden.pt", whole), ("readme.txt", b"x")):  # fmt: skip
        (data / "torch" / name).write_bytes(content)
    (data / "torch" / "link.pt").symlink_to("b.pt")
    (data / "model" / "optimizer.pt").write_bytes(whole)
    shutil.copy(data / "keras" / "m.weights.h5", data / "z.h5")
    found = [(one["path"], one["kind"]) for one in listed(served)]
    wanted = [
        ("data/keras/m.weights.h5", "keras"),
        ("data/model", "safetensors"),
        ("data/torch/b.pt", "torch"),
        ("data/z.h5", "keras"),
    ]
    assert found == wanted
    assert [x["path"] for x in listed(served, prefix="model")] == ["data/model/optimizer.pt"]
    one_by_one = [c["path"] for page in pages(served, page_size=1) for c in page["checkpoints"]]
    assert one_by_one == [path for path, _ in wanted]
    assert all(one["modified_at"] for one in listed(served))


def test_files_of_a_checkpoint_hide_nothing_below_them(served: Served, tmp_path: Path) -> None:
    data = tmp_path / "data"
    reshard.save(tmp_path / "saved", {"w": np.arange(6.0)})
    reshard.convert(tmp_path / "saved", tmp_path / "one.safetensors")
    for name in ("runs/run7/10", "runs/run7/20", "out/checkpoint-5", "out/eval", "out/step/1"):
        mark(data / name)
    for name in ("runs/stray", "runs/run7/stray", "out/model"):
        shutil.copy(tmp_path / "one.safetensors", data / f"{name}.safetensors")
    shutil.copytree(data / "out" / "eval", data / "out" / "eval" / "item")  # of one checkpoint
    write_state(data / "out" / "optimizer.pt", {"w": np.arange(6.0)})
    reshard.convert(tmp_path / "saved", data / "torch", to="dcp")
    mark(data / "torch" / "last")
    found = [(one["path"], one["kind"], one["folders"]) for one in listed(served)]
    assert found == [
        ("data/out", "safetensors", ["checkpoint-5"]),
        ("data/out/eval", "orbax", None),
        ("data/out/step", "steps", ["1"]),
        ("data/runs", "safetensors", None),
        ("data/runs/run7", "safetensors", ["10", "20"]),
        ("data/torch", "dcp", None),
        ("data/torch/last", "orbax", None),
    ]
    one_by_one = [c["path"] for page in pages(served, page_size=1) for c in page["checkpoints"]]
    assert one_by_one == [path for path, *_ in found]


def test_safetensors_files_at_the_top_of_a_root(served: Served, tmp_path: Path) -> None:
    """The root has no path: a file is named by itself, a model in several files by its index, once all are there."""
    data = tmp_path / "data"
    mark(data / "run" / "1")
    reshard.save(tmp_path / "saved", {"w": np.arange(600.0), "v": np.arange(600.0)})
    reshard.convert(tmp_path / "saved", data / "one.safetensors")
    reshard.convert(tmp_path / "saved", tmp_path / "m", to="safetensors", file_bytes=5000)
    shards = sorted((tmp_path / "m").glob("*.safetensors"))
    assert len(shards) == 2
    shutil.copy(shards[0], data)
    shutil.copy(tmp_path / "m" / "model.safetensors.index.json", data)
    assert [one["path"] for one in listed(served)] == ["data/one.safetensors", "data/run"]
    shutil.copy(shards[1], data)
    assert [(one["path"], one["kind"]) for one in listed(served)] == [
        ("data/model.safetensors.index.json", "safetensors"),
        ("data/one.safetensors", "safetensors"),
        ("data/run", "steps"),
    ]


@pytest.mark.usefixtures("data")
def test_below_a_folder(served: Served) -> None:
    for prefix, expected in (
        ("run", ["data/run/1", "data/run/20", "data/run/3", "data/run/best", "data/run/step_x/eval"]),
        ("served", ["data/served/a"]),
        ("empty", []),
        ("inner/step_x", ["data/inner/step_x/eval"]),
    ):  # fmt: skip
        assert [x["path"] for x in listed(served, prefix=prefix)] == expected


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"prefix": "nothing"}, 404, "there is nothing at 'data/nothing'; check the path"),
        ({"prefix": "link"}, 404, "there is nothing at 'data/link'"),
        ({"prefix": "../outside"}, 422, "it has a name of dots"),
        ({"prefix": "/etc"}, 422, "it has an empty name"),
        ({"prefix": "%2e%2e"}, 422, "it has the character '%'"),
        ({"root": "other"}, 404, "there is nothing at 'other'"),
        ({"root": "none"}, 404, "there is nothing at 'none'"),
        ({"root": ".."}, 404, "there is nothing at '..'"),
        ({"page_token": "x"}, 422, "page_token was not made by this server"),
        ({"page_size": -1}, 422, "page_size: expected at least 0, found"),
    ],
)
def test_what_cannot_be_listed(
    served: Served, query: dict[str, Any], status: int, words: str
) -> None:
    answer = served.ask("GET", URL, "ann", params={"root": "data", **query})
    assert answer.status_code == status
    assert words in answer.json()["detail"]


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("page_size", "folders", "seconds"),
    [(1, 10**6, 60.0), (2, 1, 60.0), (200, 3, 60.0), (2, 10**6, 0.0), (200, 10**6, 0.0)],
)
def test_pages_of_any_size_tell_everything_once(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    page_size: int,
    folders: int,
    seconds: float,
) -> None:
    whole = listed(served)
    monkeypatch.setattr(browsing, "MOST_FOLDERS", folders)
    monkeypatch.setattr(browsing, "MOST_SECONDS", seconds)
    told = list(pages(served, page_size=page_size))
    assert [x for page in told for x in page["checkpoints"]] == whole
    assert all(len(page["checkpoints"]) <= page_size for page in told)


def test_what_goes_and_comes_meanwhile_hides_nothing_else(served: Served, data: Path) -> None:
    told = []
    for number, page in enumerate(pages(served, page_size=1)):
        told += [x["path"] for x in page["checkpoints"]]
        if number == 2:  # behind data/run
            shutil.rmtree(data / "run" / "best")
            mark(data / "aaa")
            mark(data / "run" / "zzz")
    assert told == ["data/7", "data/prefixed", "data/run", "data/run/step_x/eval", "data/run/zzz", "data/served/a", "data/top"]  # fmt: skip


@pytest.mark.usefixtures("data")
def test_a_token_of_another_listing_is_refused(served: Served) -> None:
    token = next(pages(served, page_size=1))["next_page_token"]
    answer = served.ask("GET", URL, params={"root": "data", "prefix": "run", "page_token": token})
    assert (answer.status_code, answer.json()["field"]) == (422, "page_token")


def test_it_goes_only_so_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "DEEPEST", 3)
    mark(tmp_path / "a" / "b")
    mark(tmp_path / "a" / "c" / "d")
    mark(tmp_path / "a" / "c" / "e" / "f")
    found = browse(locate(tmp_path), "data", 10, most_seconds=60)
    assert [x.path for x in found.checkpoints] == ["data/a/b", "data/a/c/d"]


TREES = st.sets(
    st.lists(st.sampled_from(["1", "2", "a", "b", "b_3"]), min_size=1, max_size=4).map(tuple),
    max_size=8,
)


@fuzzing(max_examples=60, deadline=None)
@given(TREES, st.integers(1, 3))
def test_pages_of_any_tree(
    tmp_path_factory: pytest.TempPathFactory, tree: set[tuple[str, ...]], page_size: int
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for names in tree:
        mark(root.joinpath(*names))
    whole = browse(locate(root), "data", 10**6, most_seconds=60)
    assert whole.after is None
    told, after = [], ()
    while after is not None:
        page = browse(locate(root), "data", page_size, after, most_seconds=60)
        told += page.checkpoints
        after = page.after
    assert told == whole.checkpoints
    covered = {f"{x.path}/{name}" for x in told for name in x.folders or ()} | {
        x.path for x in told
    }
    marked = {"data/" + "/".join(names) for names in tree}
    inside = {m for m in marked for other in marked if m.startswith(f"{other}/")}
    assert marked - inside == {c for c in covered if c in marked}
