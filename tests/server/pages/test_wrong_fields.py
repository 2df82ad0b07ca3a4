"""What is wrong in the form of a new conversion is said beside its field, and nothing starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.pages.browser import Browser
from tests.server.pages.new_conversion import FORM, GOOD, MAPPED, YAML
from tests.server.served import Served


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
