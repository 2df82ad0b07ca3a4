"""Layouts and checkpoints as pages: listed, looked at, and tried on each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reshard_server.pages import stored as pages
from reshard_server.pages.rendering import layout_text
from reshard_server.worker import answer

import reshard
from tests.server.pages.browser import Browser
from tests.server.served import Served

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}],
}


@pytest.fixture
def stored(served: Served) -> Served:
    """Two versions of a layout."""
    for size in (2, 4):
        layout = {**LAYOUT, "mesh": {"x": size}}
        answer = served.ask("PUT", "/v1/layouts/serving", json={"layout": layout})
        assert answer.status_code == 201
    return served


def test_none_yet(ann: Browser) -> None:
    assert "No layout is stored yet." in ann.go("/layouts").text
    assert ann.go("/layouts/none").headings[0] == (1, "There is nothing here")
    assert (
        ann.go("/layouts/none/preview?checkpoint=data/x").headings[0][1] == "There is nothing here"
    )


def test_listed_by_name(
    stored: Served,
    ann: Browser,
    monkeypatch: pytest.MonkeyPatch,
    signed_in: Callable[[str], Browser],
) -> None:
    stored.ask("PUT", "/v1/layouts/another", json={"layout": LAYOUT})
    stored.ask("PUT", "/v1/layouts/gone", json={"layout": LAYOUT})
    stored.ask("DELETE", "/v1/layouts/gone")
    page = ann.go("/layouts")
    assert "another 1 just now ann with this layout serving 2 just now ann" in page.text
    assert "gone" not in page.text
    assert page.links.count("/new-conversion?layout=serving") == 1
    assert "with this layout" not in signed_in("eve").go("/layouts").text
    monkeypatch.setattr(pages, "PAGE_SIZE", 1)
    page = ann.go("/layouts")
    (further,) = [link for link in page.links if "page_token" in link]
    page = ann.go(further)
    assert "serving" in page.text and "another" not in page.text
    assert "page_token was not made" in ann.go("/layouts?page_token=x").text


def test_its_versions(stored: Served, ann: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ann.go("/layouts/serving")
    for words in ("Layout serving", "Version 2 Mesh x=4 Rules 1", '"match": "kernel"', "By ann"):
        assert words in page.text, (words, page.text)
    assert [link for link in page.links if "@" in link] == [
        "/layouts/serving@2",
        "/layouts/serving@1",
    ]
    assert "/new-conversion?layout=serving%402" in page.links
    assert "Version 1 Mesh x=2" in ann.go("/layouts/serving@1").text
    form = ann.go("/new-conversion?layout=serving%401").form("/new-conversion")
    assert form.fields["layout"] == "serving@1"
    monkeypatch.setattr(pages, "PAGE_SIZE", 1)
    (older,) = [link for link in ann.go("/layouts/serving").links if "page_token" in link]
    assert "/layouts/serving@1" in ann.go(older).links
    stored.ask("DELETE", "/v1/layouts/serving")
    assert ann.go("/layouts/serving").headings[0][1] == "There is nothing here"


def test_a_long_one_is_cut(served: Served, ann: Browser) -> None:
    rules = [{"match": f"layer{n}/kernel", "axes": [None, "x"]} for n in range(2000)]
    served.ask("PUT", "/v1/layouts/long", json={"layout": {**LAYOUT, "rules": rules}})
    page = ann.go("/layouts/long")
    assert "The whole text is in the API's answer ." in page.text
    assert len(ann.answer.content) < 4 * pages.LONGEST_SHOWN


@pytest.mark.usefixtures("run_of", "stored")
def test_tried_on_a_checkpoint(ann: Browser) -> None:
    page = ann.go("/layouts/serving")
    assert page.form("/layouts/serving@2/preview").method == "get"
    page = ann.go("/layouts/serving@2/preview?checkpoint=data/run/1")
    assert ann.status == 200, page.text
    for words in ("On data/run/1", "Each device holds", "[null, x] 4 "):
        assert words in page.text, (words, page.text)
    assert "/new-conversion?layout=serving%402&source=data/run/1" in page.links
    assert '<h2 id="preview" tabindex="-1" autofocus>' in ann.answer.text


@pytest.mark.usefixtures("run_of", "stored")
@pytest.mark.parametrize(
    ("checkpoint", "status", "words"),
    [
        ("", 422, "no checkpoint is given; give one as ROOT/path"),
        ("data/none", 404, "there is nothing at 'data/none'"),
        ("other/x", 404, "there is nothing at 'other/x'"),
        ("data/../x", 422, "it has a name of dots"),
        ("data/run", 422, "name one of them: data/run/2"),
        ("x" * 5000, 422, ""),
    ],
)
def test_what_cannot_be_tried(ann: Browser, checkpoint: str, status: int, words: str) -> None:
    page = ann.go(f"/layouts/serving/preview?checkpoint={checkpoint}")
    assert ann.status == status
    assert words in page.text, page.text


@pytest.mark.parametrize(
    "layout",
    [{}, LAYOUT, {"mesh": None, "rules": []}, {"rules": [{"match": 'a"\\/é', "axes": []}], "x": [1, {"y": 2}]}],
)  # fmt: skip
def test_the_text_of_a_layout_is_its_content(layout: dict[str, object]) -> None:
    assert json.loads(layout_text(layout)) == layout
    assert layout_text(LAYOUT).splitlines()[3] == '    {"match": "kernel", "axes": [null, "x"]}'


@pytest.mark.usefixtures("run_of")
def test_a_checkpoint(ann: Browser, signed_in: Callable[[str], Browser], tmp_path: Path) -> None:
    ann.go("/checkpoint?path=data/run/1")
    for words in (
        "Checkpoint data/run/1",
        "Tensors 3",
        "params/kernel 64×32 float32",
        "Format orbax",
    ):
        assert words in ann.text, (words, ann.text)
    assert "/new-conversion?source=data/run/1" in ann.page.links
    assert str(tmp_path) not in ann.answer.text
    eve = signed_in("eve")
    assert not [x for x in eve.go("/checkpoint?path=data/run/1").links if x.startswith("/new-")]


def test_many_tensors_are_cut(stored: Served, ann: Browser, tmp_path: Path) -> None:
    many = answer.MOST_TENSORS + 1
    tensors = {f"t{n:03}": np.zeros(4, np.float32) for n in range(many)}
    reshard.save(tmp_path / "data" / "many", tensors)
    assert stored
    told = f"The first {many - 1} of {many} tensors."
    page = ann.go("/checkpoint?path=data/many")
    assert told in page.text and "t199" in page.text and "t200" not in page.text
    page = ann.go("/layouts/serving/preview?checkpoint=data/many")
    assert told in page.text and "t200" not in page.text


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("data/none", 404, "there is nothing at 'data/none'"),
        ("other/x", 404, "there is nothing at 'other/x'"),
        ("data/run", 422, "name one of them"),
        ("data/../run", 422, "it has a name of dots"),
        ("", 422, ""),
    ],
)
def test_what_is_no_checkpoint(
    ann: Browser, path: str, status: int, words: str, tmp_path: Path
) -> None:
    page = ann.go(f"/checkpoint?path={path}")
    assert ann.status == status
    assert words in page.text
    assert str(tmp_path) not in ann.answer.text


def test_an_ended_conversion_is_asked_for_again(
    stored: Served, ann: Browser, signed_in: Callable[[str], Browser]
) -> None:
    asked = {
        "source": "data/a", "target": "data/b", "layout": "serving", "mesh": "x=8", "missing_axes": "replicate",
        "select": ["^a", "b$"], "drop": ["c"], "rename": [["a", "b"]], "cast": [["float", "bfloat16"]],
        "compression": "zstd:3", "chunk_bytes": 1048576, "ocdbt": True, "style": "v1", "overwrite": True,
        "restart": True, "verify": "readback", "max_memory": "64MiB", "workers": 1, "priority": -3,
        "labels": {"run": "7"}, "run_seconds": 90.5, "no_progress_seconds": 60,
    }  # fmt: skip
    new = stored.create(**asked)
    stored.ask("POST", f"/v1/conversions/{new}:cancel")
    (link,) = [x for x in ann.go(f"/conversions/{new}").links if "again" in x]
    page = ann.go(link)
    assert '<details class="advanced" open>' in ann.answer.text
    flags = dict.fromkeys(("ocdbt", "overwrite", "restart"), "yes")
    assert flags.items() <= page.form("/new-conversion").fields.items()
    ann.submit("/new-conversion", do="start")
    again = ann.path.removeprefix("/conversions/")
    assert again != new
    both = [stored.ask("GET", f"/v1/conversions/{x}").json()["request"] for x in (new, again)]
    assert both[0]["layout"] == "serving@2"
    both[0]["chunk_bytes"] = "1048576"
    assert both[0] == both[1]
    bob = signed_in("bob")
    assert bob.go(link).headings[0][1] == "There is nothing here"
    assert ann.go("/new-conversion?again=none").headings[0][1] == "There is nothing here"
    assert ann.go(f"{link}&number=1").headings[0][1] == "There is nothing here"


def test_one_of_several_targets_is_asked_for_again(served: Served, ann: Browser) -> None:
    inline = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "w", "axes": ["x"]}]}
    targets = [{"target": "data/b"}, {"target": "data/c", "layout": inline}]
    body = {"source": "data/a", "targets": targets}
    new = served.ask("POST", "/v1/conversions", json=body).json()["id"]
    served.ask("POST", f"/v1/conversions/{new}:cancel")
    ann.go(f"/new-conversion?again={new}&number=1")
    ann.submit("/new-conversion", do="start")
    found = served.ask("GET", f"/v1/conversions/{ann.path.removeprefix('/conversions/')}").json()
    assert found["request"]["target"] == "data/c"
    assert found["request"]["layout"] == inline
