"""Every page in a real browser, for everybody: what axe checks, narrow windows, light and dark, the policy of scripts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.server.live import Live
from tests.server.pages.chromium import person
from tests.server.pages.looks import check

URL = "/v1/conversions"


@pytest.fixture(scope="module")
def everything(server: Live) -> dict[str, str]:
    """Paths of pages with content, by kind."""
    with server.client() as client:
        paths = {}
        for name, source in (("succeeded", "data/run/1"), ("failed", "data/run")):
            body = {"source": source, "target": f"data/{name}", "labels": {"run": "7"}}
            new = client.post(URL, json=body).json()["id"]
            with client.stream("GET", f"{URL}/{new}/events", timeout=90) as stream:
                assert "event: end" in stream.read().decode()
            paths[name] = f"/conversions/{new}"
        layout = {"mesh": {"x": 4}, "rules": [{"match": "w", "axes": [None, "x"]}]}
        client.put("/v1/layouts/columns", json={"layout": layout}).raise_for_status()
        mapped = {"map": {"map": [{"from": "w", "to": "weight", "shape": "a b -> b a"}]}}
        client.put("/v1/maps/turned", json=mapped).raise_for_status()
        rules = {"source": "data/run", "step": "each"}
        client.put("/v1/views/model", json={"view": rules}).raise_for_status()
        long = "with-a-name-that-is-much-too-long-for-the-window-of-a-telephone/" * 3
        targets = [{"target": f"data/{long}{n}", "mesh": "data=1,model=2"} for n in range(3)]
        body = {"source": "data/run/1", "targets": targets, "labels": {"k" * 64: "v" * 256}}
        body["notify"] = [f"http://127.0.0.1:9/{long}"]  # no server listens there
        new = client.post(URL, json=body).json()["id"]
        with client.stream("GET", f"{URL}/{new}/events", timeout=90) as stream:
            assert "event: end" in stream.read().decode()
        paths["several"] = f"/conversions/{new}"
        later = {"source": f"data/{long}later", "step": "latest"}
        client.put("/v1/views/later", json={"view": later}).raise_for_status()
        schedule = {"when": {"directory": "data/run"}, "targets": [{"target": "data/s/{step}"}]}
        client.put("/v1/schedules/each", json=schedule).raise_for_status()
        run_each(client)
    return {
        **paths, "plan": f"{paths['succeeded']}/plan", "no plan": f"{paths['failed']}/plan", "overview": "/",
        "conversions": "/conversions", "none": "/conversions?state=cancelling", "schedules": "/schedules",
        "schedule": "/schedules/each", "new conversion": "/new-conversion", "new schedule": "/new-schedule",
        "checkpoints": "/checkpoints", "nothing": "/nothing", "layouts": "/layouts", "layout": "/layouts/columns",
        "maps": "/maps", "map": "/maps/turned", "chosen map": "/new-conversion?map=turned",
        "views": "/views", "view": "/views/model", "no view": "/views/later",
        "tried": "/layouts/columns/preview?checkpoint=data/run/1", "not tried": "/layouts/columns/preview?checkpoint=data/x",
        "checkpoint": "/checkpoint?path=data/run/1", "no checkpoint": "/checkpoint?path=data/x",
        "succeeded ones": "/conversions?state=succeeded", "failed ones": "/conversions?state=failed",
        "api": "/docs", "several": paths["several"], "again": f"/new-conversion?again={paths['failed'].rpartition('/')[2]}",
    }  # fmt: skip


def run_each(client: httpx.Client) -> None:
    """The only step is converted, by the watch or now."""
    answer = client.post("/v1/schedules/each:run", json={})
    assert answer.status_code in (202, 409), answer.text


def test_everybody_can_use_every_page(
    browser: Browser, server: Live, everything: dict[str, str], pages_shown: Path | None
) -> None:
    """What axe checks, and that nothing but tables and pictures is wider than the window."""
    found: dict[str, str] = {}
    # the page's policy stands in the way of axe only: the other tests run under it
    with person(browser, server.url, bypass_csp=True) as someone:
        look = partial(check, someone.page, found, pages_shown)
        someone.go("/sign-in")
        look("sign in")
        page = someone.sign_in()
        for name, path in everything.items():
            someone.go(path)
            if name == "plan":
                page.get_by_text("As tables").click()
            look(name)
        someone.go("/new-conversion")
        page.locator("#source").fill("nothing")
        page.get_by_role("textbox", name="Target").fill("data/x")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("heading", name="Please correct these fields")).to_be_focused()
        look("refused")
        someone.go("/new-conversion?source=data/run/1&target=data/y")
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("heading", name="Preview").wait_for()
        look("preview")
        someone.wrong = [w for w in someone.wrong if "Failed to load resource" not in w]
    assert found == {}


def test_axe_finds_what_is_wrong(browser: Browser, server: Live) -> None:
    """So that a page without violations says something."""
    with person(browser, server.url, bypass_csp=True) as someone:
        page = someone.go("/sign-in")
        page.evaluate("document.querySelector('label').remove()")
        assert "label" in {v["id"] for v in Axe().run(page).response["violations"]}


def test_the_policy_is_in_force(browser: Browser, server: Live) -> None:
    """A script that stands in a page does not run, and the tests would notice it."""
    with person(browser, server.url) as someone:
        page = someone.go("/sign-in")
        refused = "refused by the policy: script-src"
        with page.expect_console_message(lambda said: refused in said.text):
            page.evaluate(
                """() => { const made = document.createElement("script");
                made.textContent = "window.ran = true"; document.body.append(made); }"""
            )
        assert page.evaluate("window.ran") is None
        assert any(refused in text for text in someone.wrong)
        someone.wrong.clear()
