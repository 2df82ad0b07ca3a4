"""The form of a new conversion: previewed, started once, and refused beside the field that is wrong."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reshard_server.db.conversions import conversions
from reshard_server.pages import source_choices
from reshard_server.pages.conversions.conversion_form import TEXTS
from reshard_server.pages.conversions.form_fields import FLAGS
from reshard_server.schemas.conversion import OneTarget
from reshard_server.services import BROWSERS

import reshard
from tests.server.pages.browser import Browser
from tests.server.served import Served

FORM = "/new-conversion"
YAML = 'mesh: {axes: [x], shape: [4]}\nrules:\n  - {match: "kernel", axes: [null, x]}\n'
JSON = '{"mesh": {"axes": ["x"], "shape": [4]}, "rules": []}'
GOOD = {"source": "data/run/1", "target": "data/out", "do": "start"}


def made(served: Served, browser: Browser) -> dict[str, object]:
    """The request of the conversion whose page this is."""
    found = conversions.get(served.db, browser.path.removeprefix("/conversions/"))
    assert found is not None
    return found.request.model_dump(mode="json")


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
    monkeypatch.setattr(source_choices, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(source_choices, "newest_sources", lambda *_: [str(go_on.wait(60))])
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
    monkeypatch.setattr(source_choices, "MOST_CHOICES", 1)
    ann.go(FORM)
    assert ann.answer.text.count('<option value="data/') == 1
    monkeypatch.setattr(source_choices, "MOST_SECONDS", 0.0)
    assert ann.go(FORM).form(FORM).fields["source"] == ""


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
    """Or else a conversion that is asked for again would lose it; step and item become a part of the source."""
    members = set(OneTarget.model_fields) - {"step", "item"}
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


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"source": ""}, "source", "at least 1 character"),
        ({"source": "nothing"}, "source", "is not a path below a storage root"),
        ({"source": "other/x"}, "source", "there is nothing at 'other/x' that this token may use"),
        ({"source": "data/../x"}, "source", "it has a name of dots"),
        ({"target": "other/x"}, "target", "there is nothing at 'other/x' that this token may use"),
        ({"target": "data/.x.reshard-partial"}, "target", "has the name of a folder for unfinished output"),
        ({"layout": "none-such"}, "layout", "is not stored"),
        ({"layout": "a", "layout_text": YAML}, "layout_text", "keep one of them"),
        ({"layout_text": "mesh: {axes: [x]"}, "layout_text", "not YAML"),
        ({"layout_text": "[1]"}, "layout_text", "is not a layout file"),
        ({"layout_text": "just words"}, "layout_text", "is not a layout file"),
        ({"layout_text": "a: &x 1\nb: *x"}, "layout_text", "aliases (*x) are refused"),
        ({"layout_text": "{mesh: 1}"}, "layout_text", "mesh"),
        ({"layout_text": "odd: 1"}, "layout_text", "odd"),
        ({"layout_text": '{"mesh": {"axes": ["a\\u0000"], "shape": [2]}}'}, "", "NUL"),
        ({"mesh": "x"}, "mesh", "x"),
        ({"mesh": "x=0"}, "mesh", "0"),
        ({"select": "("}, "select", "("),
        ({"drop": "("}, "drop", "("),
        ({"rename": "a"}, "rename", "write PATTERN=NEW, one per line"),
        ({"cast": "kernel"}, "cast", "write PATTERN=DTYPE, one per line"),
        ({"cast": "kernel=float17"}, "cast", "float17"),
        ({"compression": "zip"}, "compression", "zip"),
        ({"chunk_bytes": "much"}, "chunk_bytes", "much"),
        ({"max_memory": "1TiB"}, "max_memory", "above this server's ceiling"),
        ({"max_memory": "lots"}, "max_memory", "lots"),
        ({"priority": "high"}, "priority", "expected a whole number"),
        ({"priority": "101"}, "priority", "expected at most 100"),
        ({"workers": "many"}, "workers", "expected a whole number"),
        ({"workers": "100"}, "workers", "above this server's ceiling"),
        ({"missing_axes": "guess"}, "missing_axes", "'error' or 'replicate'"),
        ({"verify": "twice"}, "verify", "'written' or 'readback'"),
        ({"style": "v9"}, "style", "'v0' or 'v1'"),
        ({"run_seconds": "1h"}, "run_seconds", "expected seconds, such as 3600"),
        ({"run_seconds": "0"}, "run_seconds", "1"),
        ({"labels": "run"}, "labels", "write KEY=VALUE, one per line"),
        ({"labels": "run=1\nrun=2"}, "labels", "occurs twice; keep one line of it"),
        ({"labels": "k" * 65 + "=1"}, "labels", "64"),
        ({"source": "data/run/1\0"}, None, "NUL"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_beside_its_field(
    served: Served, ann: Browser, changed: dict[str, str], field: str | None, words: str
) -> None:
    ann.go(FORM)
    page = ann.submit(FORM, {"drop": "kept-as-it-was", **GOOD, **changed})
    assert ann.status in (400, 404, 422)
    assert words in page.text
    assert served.wakes == 0
    if field is None:
        return
    assert page.headings[1] == (2, "Please correct these fields")
    kept = page.form(FORM).fields
    expected = {"drop": "kept-as-it-was", **GOOD, **changed}
    assert {k: v.strip() for k, v in expected.items() if k != "do"}.items() <= kept.items()
    if field:
        assert f'id="{field}-error"' in ann.answer.text
        assert f"#{field}" in page.links
        assert ann.answer.text.count('aria-invalid="true"') == 1


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize(
    ("changed", "status", "field", "words"),
    [
        ({"source": "data/none"}, 404, "source", "there is nothing at 'data/none'"),
        ({"source": "data/run"}, 422, "", "name one of them: data/run/2"),
        ({"target": "data/run/2"}, 409, "", "the target 'data/run/2' exists already"),
        ({"select": "nothing-like-it"}, 422, "", "nothing-like-it"),
        ({"layout_text": YAML.replace("[4]", "[5]")}, 422, "", "kernel"),
    ],
)  # fmt: skip
def test_what_only_the_checkpoint_tells_is_said_by_the_preview(
    ann: Browser, changed: dict[str, str], status: int, field: str, words: str, tmp_path: Path
) -> None:
    ann.go(FORM)
    page = ann.submit(FORM, {**GOOD, **changed, "do": "preview"})
    assert ann.status == status
    assert words in page.text
    assert str(tmp_path) not in ann.answer.text
    assert (f'id="{field}-error"' in ann.answer.text) == bool(field)


def test_a_full_queue(serve: Callable[..., Served]) -> None:
    browser = Browser(serve(queued_per_token=1))
    browser.sign_in()
    for status in (200, 429):
        browser.go(FORM)
        browser.submit(FORM, **GOOD)
        assert browser.status == status
    assert browser.page.form(FORM).fields["target"] == "data/out"


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


MAPPED = "drop: ['^step$']\r\nmap:\r\n- {from: params/kernel, to: 'k.{h}', shape: (h d) e -> e d}\r\n- {from: params/bias, to: b}"


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


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"map_text": "map: [{from: a, to: b, shape: e}]"}, "map_text", "map:1: map[0].shape: 'e' must have one arrow"),
        ({"map_text": MAPPED.replace("to: b", "to: 'b.{l'")}, "map_text", "double it if the name has it. Line 4 is: - {from: params/bias, to: 'b.{l'}"),
        ({"map_text": MAPPED.replace("params/bias", "params/bios"), "sizes": "h=4"}, "map_text", "Line 4 is: - {from: params/bios, to: b}"),
        ({"map_text": MAPPED, "map": "hf"}, "map_text", "a stored map is chosen and a map's text is given; keep one of them"),
        ({"map": "unknown", "sizes": "h=4"}, "map", "the map 'unknown' is not stored; store it, or give the map's content"),
        ({"map": "/etc/passwd"}, "map", "the map '/etc/passwd' is not stored"),
        ({"map_text": MAPPED, "sizes": "four"}, "sizes", "'four' is no size; write NAME=N, one per line"),
        ({"sizes": "h=4"}, "sizes", "sizes are for a map, but no map is given"),
    ],
)  # fmt: skip
def test_the_line_of_an_error_in_a_map_stands_beside_its_field(
    ann: Browser, fields: dict[str, str], field: str, said: str
) -> None:
    ann.go(FORM)
    page = ann.submit(FORM, {**GOOD, **fields}, do="preview")
    assert ann.status == 422
    assert said in page.text
    assert (
        f'aria-describedby="{field}-error' in ann.answer.text
        or f'id="{field}-error"' in ann.answer.text
    )


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
