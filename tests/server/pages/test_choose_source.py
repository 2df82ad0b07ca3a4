"""The source in the form of a new conversion: found by browsing, offered, and its layout filled in."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reshard_server.pages import checkpoint_pages
from reshard_server.services import BROWSERS

import reshard
from tests.server.pages.browser import Browser
from tests.server.pages.new_conversion import FORM, made
from tests.server.served import Served


@pytest.fixture
def sharded(served: Served) -> Path:
    """A checkpoint that is split by data and model."""
    layout = reshard.LayoutMap(reshard.DeviceMesh((2, 2), ("data", "model")))
    layout["w"] = ("data", "model")
    root = Path(str(served.app.state.services.settings.roots["data"]))
    reshard.save(root / "split", {"w": np.zeros((4, 4), np.float32)}, layout=layout)
    return root


def test_the_layout_is_filled_in_from_the_source(
    served: Served, ann: Browser, sharded: Path
) -> None:
    filled = ann.go(f"{FORM}?source=data/split").form(FORM).fields
    assert filled["layout_text"].startswith("# Layout of 'data/split'.\n# Each tensor has the axes")
    assert "mesh: {axes: [data, model], shape: [2, 2]}" in filled["layout_text"]
    assert str(sharded) not in ann.answer.text
    assert filled["starter"] == filled["layout_text"]
    ann.submit(FORM, {"target": "data/out"}, do="start")
    assert made(served, ann)["layout"] == {
        "mesh": {"axes": ["data", "model"], "shape": [2, 2]},
        "rules": [{"match": "(^|/)w$", "axes": ["data", "model"]}],
        "unmatched": "replicate",
    }


@pytest.mark.usefixtures("sharded")
def test_the_layout_is_filled_in_when_it_is_asked_for(ann: Browser) -> None:
    ann.go(FORM)
    page = ann.submit(FORM, {"source": "data/split", "mesh": "x=4", "target": ""}, do="fill")
    assert ann.status == 200
    fields = page.form(FORM).fields
    assert "mesh: {axes: [x], shape: [4]}" in fields["layout_text"]
    assert "which has other axes, so this is a" in fields["layout_text"]
    for wrong, name in (
        ({"source": "data/none"}, "source"),
        ({"source": "data/split", "mesh": "4"}, "mesh"),
    ):
        ann.submit(FORM, wrong, do="fill")
        assert ann.status in (404, 422)
        assert f'<p class="error" id="{name}-error">' in ann.answer.text
    assert ann.go(f"{FORM}?source=data/none").form(FORM).fields["layout_text"] == ""


@pytest.mark.usefixtures("sharded")
def test_a_stored_layout_takes_the_place_of_a_text_that_was_filled_in(
    served: Served, ann: Browser
) -> None:
    layout = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": []}
    assert served.ask("PUT", "/v1/layouts/serving", json={"layout": layout}).status_code == 201
    changed = {"target": "data/out", "layout": "serving"}
    ann.go(f"{FORM}?source=data/split")
    ann.submit(FORM, {**changed, "layout_text": "mesh: {x: 2}"}, do="start")
    assert "a stored layout is chosen and a layout" in ann.answer.text
    ann.go(f"{FORM}?source=data/split")
    ann.submit(FORM, changed, do="start")
    assert made(served, ann)["layout"] == "serving@1"


@pytest.mark.usefixtures("sharded")
def test_a_layout_that_was_filled_in_is_not_that_of_what_a_map_makes(
    served: Served, ann: Browser
) -> None:
    ann.go(f"{FORM}?source=data/split")
    mapped = {"target": "data/out", "map_text": "map: [{from: w, to: turned, shape: a b -> b a}]"}
    ann.submit(FORM, mapped, do="start")
    assert made(served, ann)["layout"] is None


@pytest.mark.usefixtures("run_of")
def test_sources_are_offered(
    ann: Browser, signed_in: Callable[[str], Browser], tmp_path: Path
) -> None:
    """Those below the roots that the visitor may read, and no others."""
    run = tmp_path / "other" / "secret" / "1"
    shutil.copytree(tmp_path / "data" / "run" / "1", run)
    ann.go(FORM)
    for path in ("data/run/2", "data/run/1"):
        assert f'<option value="{path}"></option>' in ann.answer.text
    assert ann.answer.text.index("data/run/2") < ann.answer.text.index("data/run/1")
    assert "secret" not in ann.answer.text
    bob = signed_in("bob")
    bob.go(FORM)
    assert '<option value="other/secret/1"></option>' in bob.answer.text


def test_a_storage_that_hangs_does_not_hold_up_the_form(
    ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even once every thread for it hangs."""
    go_on = threading.Event()
    monkeypatch.setattr(checkpoint_pages, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(checkpoint_pages, "newest_sources", lambda *_: [str(go_on.wait(60))])
    try:
        for _ in range(BROWSERS + 1):
            ann.go(FORM)
            assert ann.status == 200
            assert 'datalist id="source-known"' not in ann.answer.text
    finally:
        go_on.set()


def test_no_more_sources_are_offered_than_can_be_looked_through(
    ann: Browser, run_of: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_of
    monkeypatch.setattr(checkpoint_pages, "MOST_CHOICES", 1)
    ann.go(FORM)
    assert ann.answer.text.count('<option value="data/') == 1
    monkeypatch.setattr(checkpoint_pages, "MOST_SECONDS", 0.0)
    assert ann.go(FORM).form(FORM).fields["source"] == ""


def test_checkpoints_are_browsed(
    ann: Browser, run_of: Path, signed_in: Callable[[str], Browser]
) -> None:
    (run_of / "2").rename(run_of.parent / "of & one")
    page = ann.go("/checkpoints")
    assert "data/run 1 step " in page.text and "data/of & one orbax" in page.text
    (link,) = [x for x in page.links if "of" in x and x.startswith("/new-")]
    assert ann.go(link).form(FORM).fields["source"] == "data/of & one"
    page = ann.go("/checkpoints?root=data&prefix=run")
    assert "/checkpoints?root=data&prefix=run" in ann.go("/checkpoints").links
    assert "/checkpoint?path=data/run/1" in page.links
    assert ann.go("/checkpoints?root=data&prefix=/none/").headings[0][1] == "There is nothing here"
    assert ann.go("/checkpoints?root=other").headings[0][1] == "There is nothing here"
    root = signed_in("root")
    assert "Root data other" in root.go("/checkpoints").text
    assert "No checkpoint was found here" in root.go("/checkpoints?root=other").text
