"""The form of a new conversion: every field is sent, a preview starts nothing, and what is sent twice starts once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reshard_server.pages.conversion_form import FLAGS, TEXTS
from reshard_server.schemas.conversion import OneTarget

import reshard
from tests.server.pages.browser import Browser
from tests.server.pages.new_conversion import FORM, GOOD, MAPPED, YAML, made
from tests.server.served import Served

JSON = '{"mesh": {"axes": ["x"], "shape": [4]}, "rules": []}'


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize("text", [YAML, JSON])
def test_previewed_and_then_started(served: Served, ann: Browser, text: str) -> None:
    ann.go("/checkpoints?root=data")
    (link,) = [x for x in ann.page.links if x.endswith("/1")]
    page = ann.go(link)
    assert page.form(FORM).fields["source"] == "data/run/1"
    fields = {
        "target": "data/out",
        "layout_text": text,
        "cast": "kernel=bfloat16\r\n\r\n bias = float16 ",
    }
    page = ann.submit(FORM, fields, do="preview")
    assert ann.status == 200, page.text
    for words in (
        "Preview: nothing has started yet",
        "Source mesh",
        "Target mesh",
        "float32 → bfloat16",
        "Each device holds",
    ):
        assert words in page.text
    assert served.wakes == 0
    kept = page.form(FORM).fields
    assert (kept["source"], kept["target"], kept["layout_text"]) == (
        "data/run/1",
        "data/out",
        text.strip(),
    )
    page = ann.submit(FORM, do="start")
    assert ann.status == 200 and "queued" in page.text
    found = made(served, ann)
    assert found["layout"] == {
        "mesh": {"axes": ["x"], "shape": [4]},
        "rules": [{"match": "kernel", "axes": [None, "x"]}] if text == YAML else [],
    }
    assert found["cast"] == [["kernel", "bfloat16"], ["bias", "float16"]]


def test_every_field(served: Served, ann: Browser) -> None:
    layout = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": []}
    assert served.ask("PUT", "/v1/layouts/serving", json={"layout": layout}).status_code == 201
    page = ann.go(FORM)
    assert '<option value="serving">serving</option>' in ann.answer.text
    assert page.form(FORM).fields["compression"] == "none"
    fields = {
        "layout": "serving", "mesh": "x=4", "select": "^params/\n^opt/", "drop": "mu$", "rename": "^params/=model/",
        "compression": "zstd:3", "max_memory": "64MiB", "chunk_bytes": "1MiB", "priority": "-7", "overwrite": "yes",
        "ocdbt": "yes", "restart": "yes", "missing_axes": "replicate", "workers": "2", "verify": "readback", "style": "v0",
        "labels": "run=7\nteam = a=b", "run_seconds": "3600", "no_progress_seconds": "90.5",
        "missing_chunks": "refuse",
    }  # fmt: skip
    ann.submit(FORM, fields, **GOOD)
    expected = {
        "layout": "serving@1", "mesh": "x=4", "select": ["^params/", "^opt/"], "drop": ["mu$"],
        "rename": [["^params/", "model/"]], "compression": "zstd:3", "max_memory": "64MiB", "chunk_bytes": "1MiB",
        "priority": -7, "overwrite": True, "ocdbt": True, "restart": True, "missing_axes": "replicate", "workers": 2,
        "verify": "readback", "style": "v0", "labels": {"run": "7", "team": "a=b"}, "run_seconds": 3600.0, "no_progress_seconds": 90.5,
        "missing_chunks": "refuse",
    }  # fmt: skip
    assert expected.items() <= made(served, ann).items()


def test_the_answer_of_a_preview_stands_above_the_form(ann: Browser, run_of: Path) -> None:
    assert run_of
    ann.go(FORM)
    page = ann.submit(FORM, {**GOOD, "cast": "kernel=bfloat16", "overwrite": "yes"}, do="preview")
    html = ann.answer.text
    answer, form = html.index('<h2 id="preview" tabindex="-1" autofocus>'), html.index('id="form"')
    assert answer < form
    assert html.index('value="preview" class="main"') < html.rindex('value="start"')
    assert [text for _, text in page.headings[:2]] == [
        "New conversion", "Preview: nothing has started yet"
    ]  # fmt: skip
    shown, below = (f.fields for f in page.forms if f.action == FORM)
    kept = {
        "source": "data/run/1",
        "target": "data/out",
        "cast": "kernel=bfloat16",
        "overwrite": "yes",
    }
    assert kept.items() <= shown.items()
    assert kept.items() <= below.items() and shown["key"] == below["key"]


def test_what_is_rarely_needed_is_folded(ann: Browser) -> None:
    ann.go(FORM)
    assert '<details class="advanced">' in ann.answer.text
    shown = ann.answer.text.partition('<details class="advanced">')[0]
    first = ["source", "target", "layout", "mesh", "missing_axes", "layout_text"]
    assert [n for n in first if f'name="{n}"' in shown] == first
    assert 'name="cast"' not in shown
    for changed in (
        {"priority": "high"},
        {"drop": "mu"},
        {"ocdbt": "yes"},
    ):
        ann.go(FORM)
        ann.submit(FORM, {"source": "nothing", "target": "data/x", **changed}, do="preview")
        assert '<details class="advanced" open>' in ann.answer.text, changed
    ann.go(FORM)
    ann.submit(FORM, source="nothing", target="data/x", do="preview")
    assert '<details class="advanced">' in ann.answer.text


@pytest.mark.usefixtures("run_of")
def test_axes_that_the_mesh_lacks(served: Served, ann: Browser) -> None:
    layout = reshard.LayoutMap(reshard.DeviceMesh((2, 2), ("data", "model")))
    layout["w"] = ("data", "model")
    root = Path(str(served.app.state.services.settings.roots["data"]))
    reshard.save(root / "sharded", {"w": np.zeros((4, 4), np.float32)}, layout=layout)
    asked = {"source": "data/sharded", "target": "data/out", "mesh": "model=2"}
    ann.go(FORM)
    page = ann.submit(FORM, {**asked, "do": "preview"})
    assert ann.status == 422 and "data" in page.text
    page = ann.submit(FORM, {**asked, "missing_axes": "replicate", "do": "preview"})
    assert ann.status == 200, page.text
    ann.submit(FORM, do="start")
    assert made(served, ann)["missing_axes"] == "replicate"


def test_the_form_has_every_member_of_a_request_to_one_target(ann: Browser) -> None:
    """Or else a conversion that is asked for again would lose it; step and item become a part of the source, and a merge is refused."""
    members = set(OneTarget.model_fields) - {"step", "item", "merge"}
    assert members == {*TEXTS, *FLAGS} - {"layout_text", "map_text"}
    ann.go(FORM)
    lacking = [n for n in (*TEXTS, *FLAGS) if f'name="{n}"' not in ann.answer.text]
    assert lacking == []


def test_sent_twice_it_starts_one(served: Served, ann: Browser) -> None:
    ann.go(FORM)
    first = ann.answer
    ann.submit(FORM, **GOOD)
    path = ann.path
    ann.answer = first
    ann.submit(FORM, **GOOD)
    assert ann.path == path
    ann.answer = first
    ann.submit(FORM, **{**GOOD, "target": "data/other"})
    assert ann.path != path
    ann.go(FORM)
    ann.submit(FORM, **GOOD)
    assert served.wakes == 3


def test_a_full_queue(serve: Callable[..., Served]) -> None:
    browser = Browser(serve(queued_per_token=1))
    browser.sign_in()
    for status in (200, 429):
        browser.go(FORM)
        browser.submit(FORM, **GOOD)
        assert browser.status == status
    assert browser.page.form(FORM).fields["target"] == "data/out"


def test_a_map_is_previewed_with_the_sources_of_each_target(
    served: Served, ann: Browser, run_of: Path
) -> None:
    assert run_of
    ann.go(FORM)
    page = ann.submit(FORM, {**GOOD, "map_text": MAPPED, "sizes": "h=4"}, do="preview")
    assert ann.status == 200, page.text
    for words in (
        "2 tensors → 5, every element used and written once: 5 exact, 0 rounded, 0 cast",
        "k.3",
        "exact, of params/kernel",
        "Left out 1 tensor ",
        "Left out step",
    ):
        assert words in page.text, words
    ann.submit(FORM, do="start")
    found = made(served, ann)
    assert found["sizes"] == {"h": 4}
    assert str(found["map"]).splitlines() == MAPPED.splitlines()


def test_a_stored_map_or_a_recipe_is_chosen(served: Served, ann: Browser, run_of: Path) -> None:
    assert run_of
    served.ask("PUT", "/v1/maps/hf", json={"map": MAPPED.replace("\r", "") + "\n"})
    page = ann.go(FORM)
    assert [x for x in ("hf", "maxtext-qwen3 (recipe)") if x in page.text] == [
        "hf",
        "maxtext-qwen3 (recipe)",
    ]
    page = ann.submit(FORM, {**GOOD, "map": "hf", "sizes": "h=4"}, do="preview")
    assert "k.3" in page.text and "exact, of params/kernel" in page.text, page.text
    ann.submit(FORM, do="start")
    assert made(served, ann)["map"] == "hf@1"
    assert "map hf@1" in ann.text
    assert "/maps/hf%401" in ann.page.links
    ann.go(f"{FORM}?map=hf%401")
    assert ann.page.form(FORM).fields["map"] == "hf@1"
    page = ann.submit(FORM, {**GOOD, "target": "data/x", "map": "maxtext-qwen3"}, do="preview")
    assert ann.status == 422
    assert "recipe maxtext-qwen3" in page.text


def test_many_sources_of_a_target_are_folded(served: Served, ann: Browser, tmp_path: Path) -> None:
    assert served
    tree = {f"l{i}": np.ones(2, np.float32) for i in range(5)}
    reshard.save(tmp_path / "data" / "many", tree)
    text = "map: [{from: 'l{i}', to: all, shape: e -> i e}]"
    ann.go(FORM)
    page = ann.submit(FORM, {**GOOD, "source": "data/many", "map_text": text}, do="preview")
    assert ann.status == 200, page.text
    assert "exact, of l0, l1, l2 and 2 more l3, l4" in page.text
