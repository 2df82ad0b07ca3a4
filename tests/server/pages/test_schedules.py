"""Schedules as pages: stored by a form, looked at, paused, run now, forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.pages.browser import Browser
from tests.server.served import Served

FORM = "/new-schedule"
STEPS = {"name": "s", "source": "data/run", "target": "data/out/{step}"}
CLOCK = {
    "name": "c",
    "when": "clock",
    "source": "data/run/2",
    "target": "data/out/{time}",
    "cron": "0 3 * * *",
}
PAUSED = {
    "when": {"directory": "data/run"},
    "targets": [{"target": "data/out/{step}"}],
    "paused": True,
}


def stored(served: Served, name: str) -> dict[str, Any]:
    found: dict[str, Any] = served.ask("GET", f"/v1/schedules/{name}").json()
    return found


def test_of_new_steps(served: Served, ann: Browser) -> None:
    ann.go("/schedules")
    assert "There are no schedules yet." in ann.text
    page = ann.go(FORM)
    assert page.form(FORM).fields["when"] == "steps"
    fields = {
        "every": "100", "newest_only": "yes", "keep": "3", "layout_text": "mesh: {axes: [x], shape: [2]}",
        "cast": ".=bfloat16", "compression": "zstd:3", "overwrite": "yes",
    }  # fmt: skip
    page = ann.submit(FORM, {**STEPS, **fields})
    assert (ann.path, ann.status) == ("/schedules/s", 200), page.text
    for words in (
        "each new step that is a multiple of 100, the newest only", "Watched directory data/run",
        "data/out/{step} its own layout, mesh x=2 cast . to bfloat16 compression zstd:3 overwrites an existing target",
        "Outputs to keep 3", "By ann", "No runs yet.", "with the next new step",
    ):  # fmt: skip
        assert words in page.text, words
    body = stored(served, "s")["schedule"]
    assert (body["when"]["every"], body["when"]["newest_only"], body["keep"]) == (100, True, 3)
    assert "s each new step that is a multiple of 100" in ann.go("/schedules").text


def test_by_the_clock(served: Served, ann: Browser) -> None:
    ann.go(FORM)
    page = ann.submit(FORM, {**CLOCK, "catch_up": "yes", "mesh": "x=2", "layout": ""})
    assert ann.path == "/schedules/c"
    assert "0 3 * * * (UTC), with catch-up" in page.text
    assert "03:00:00 UTC" in page.text and "Source data/run/2" in page.text
    assert stored(served, "c")["schedule"]["when"]["catch_up"] is True
    assert "step" not in page.form("/schedules/c/run").fields


@pytest.mark.parametrize(
    ("good", "changed", "field", "words"),
    [
        (STEPS, {"name": ""}, "name", "is not a valid name of a schedule"),
        (STEPS, {"name": "a b"}, "name", "is not a valid name of a schedule"),
        (STEPS, {"name": "x" * 129}, "name", "longer than 128"),
        (STEPS, {"name": "taken"}, "name", "the name 'taken' is taken; choose another name"),
        (STEPS, {"name": "bobs"}, "name", "the name 'bobs' is taken; choose another name"),
        (STEPS, {"source": ""}, "source", "at least 1 character"),
        (STEPS, {"source": "other/x"}, "source", "there is nothing at 'other/x'"),
        (STEPS, {"every": "0"}, "every", "expected at least 1"),
        (STEPS, {"every": "x"}, "every", "expected a whole number"),
        (STEPS, {"target": "data/out"}, "target", "is the same for every run"),
        (STEPS, {"target": "data/{odd}"}, "target", "has {odd}"),
        (STEPS, {"target": "data/run/{step}"}, "target", "is in the watched directory"),
        (STEPS, {"layout": "none-such"}, "layout", "is not stored"),
        (STEPS, {"layout": "a", "layout_text": "mesh: 1"}, "layout_text", "keep one of them"),
        (STEPS, {"layout_text": "mesh: 1"}, "layout_text", "mesh"),
        (STEPS, {"cast": "x"}, "cast", "write PATTERN=DTYPE"),
        (STEPS, {"keep": "0"}, "keep", "expected at least 1"),
        (CLOCK, {"cron": "often"}, "cron", "at least 9 characters"),
        (CLOCK, {"cron": "99 99 * * *"}, "cron", "99"),
        (CLOCK, {"source": "other/x"}, "source", "there is nothing at 'other/x'"),
        (CLOCK, {"target": "data/{step}"}, "target", "has {step}"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_beside_its_field(
    served: Served, ann: Browser, good: dict[str, str], changed: dict[str, str], field: str, words: str
) -> None:  # fmt: skip
    for who, name in (("ann", "taken"), ("bob", "bobs")):
        assert served.ask("PUT", f"/v1/schedules/{name}", who, json=PAUSED).status_code == 201
    ann.go(FORM)
    page = ann.submit(FORM, {**good, **changed})
    assert 400 <= ann.status < 500
    assert words in page.text
    assert f'id="{field}-error"' in ann.answer.text, page.text
    assert {**good, **changed}.items() <= page.form(FORM).fields.items()
    assert len(served.ask("GET", "/v1/schedules", "root").json()["schedules"]) == 2


def test_paused_resumed_and_deleted(served: Served, ann: Browser) -> None:
    assert served.ask("PUT", "/v1/schedules/s", json={**PAUSED, "paused": False}).status_code == 201
    ann.go("/schedules/s")
    page = ann.submit("/schedules/s/pause")
    assert (ann.path, stored(served, "s")["paused"]) == ("/schedules/s", True)
    assert "Next run paused" in page.text
    assert "paused" in ann.go("/schedules").text
    ann.go("/schedules/s")
    ann.submit("/schedules/s/resume")
    assert stored(served, "s")["paused"] is False
    assert "Deletes the schedule and its history." in ann.text
    ann.submit("/schedules/s/delete")
    assert (ann.path, ann.status) == ("/schedules", 200)
    assert stored(served, "s")["status"] == 404


def test_run_now(served: Served, ann: Browser, run_of: Path) -> None:
    assert run_of.is_dir()
    assert served.ask("PUT", "/v1/schedules/s", json=PAUSED).status_code == 201
    ann.go("/schedules/s")
    page = ann.submit("/schedules/s/run", step="1")
    assert ann.path.startswith("/conversions/")
    assert "Conversion to data/out/1" in page.headings[0][1] and "Schedule s" in page.text
    page = ann.go("/schedules/s")
    assert "1 started queued" in page.text
    assert ann.path == "/schedules/s" and any(x.startswith("/conversions/") for x in page.links)
    for step, status, words in [
        ("1", 409, "is being converted now; wait for it to end, or cancel its conversion"),
        ("7", 404, "there is no committed step 7"),
        ("x", 422, "expected a whole number"),
        ("-1", 422, "expected 0 or more"),
    ]:
        page = ann.submit("/schedules/s/run", step=step)
        assert ann.status == status and words in page.text
        assert page.form("/schedules/s/run").fields["step"] == step
        assert page.headings[1] == (2, "The schedule was not run")
    ann.submit("/schedules/s/run", step="")
    assert "Conversion to data/out/2" in ann.page.headings[0][1]
    assert served.wakes == 2


def test_others_schedules_are_not_there(
    served: Served, ann: Browser, signed_in: Callable[[str], Browser]
) -> None:
    assert served.ask("PUT", "/v1/schedules/s", "bob", json=PAUSED).status_code == 201
    ann.go("/schedules/s")
    assert ann.status == 404 and "that this token may see" in ann.text
    key = ann.send("GET", "/").text.split('name="form_key" value="')[1][:64]
    headers = {"Origin": "http://test"}
    for verb in ("pause", "resume", "run", "delete"):
        answer = ann.send("POST", f"/schedules/s/{verb}", data={"form_key": key}, headers=headers)
        assert answer.status_code == 404
    assert signed_in("root").go("/schedules/s").headings[0][1] == "Schedule s"


def test_what_is_rarely_needed_is_folded(served: Served, ann: Browser) -> None:
    ann.go(FORM)
    assert '<details class="advanced">' in ann.answer.text
    page = ann.submit(FORM, {**STEPS, "missing_axes": "replicate", "mesh": "x="})
    assert ann.status == 422
    assert '<details class="advanced" open>' in ann.answer.text
    ann.submit(FORM, {**page.form(FORM).fields, "mesh": "x=2"})
    assert stored(served, "s")["schedule"]["targets"][0]["missing_axes"] == "replicate"


def test_a_problem_leads_on(ann: Browser) -> None:
    for path in ("/nothing", "/schedules/none"):
        assert {"/conversions", "/schedules", "/layouts"} <= set(ann.go(path).links)


def test_a_schedule_of_versions_links_to_them(served: Served, ann: Browser) -> None:
    body = {
        "when": {"directory": "data/run"},
        "targets": [{"target": "data/{name}/weight_v{version}", "to": "safetensors"}],
        "delta": {"anchor_every": 4},
    }
    assert served.ask("PUT", "/v1/schedules/rl", json=body).status_code == 201
    page = ann.go("/schedules/rl")
    assert "every 4 versions a full one" in page.text
    assert "/versions?path=data/rl" in page.links
