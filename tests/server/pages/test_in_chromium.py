"""The pages of a real server in a real browser: by mouse, by keyboard, without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect
from reshard_server.db.conversions import claims
from reshard_server.db.database import open_database
from reshard_server.pages import rendering
from reshard_server.schemas.conversion import ProgressState
from reshard_server.settings import Settings

import reshard
from tests.server.claimed import begun
from tests.server.forked import HOLD
from tests.server.live import Live, live
from tests.server.pages.chromium import Person, person

URL = "/v1/conversions"
LAYOUT = 'mesh: {axes: [x], shape: [4]}\nrules: [{match: "w", axes: [null, x]}]'
ADVANCED = {"compression": "gzip:1", "chunk_bytes": "512KiB"}
REFRESHED = "01:00"
"""Minutes after which a page has looked again what there is."""

ENDED = ("succeeded", "failed", "cancelled")


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that carries no conversion out, so that tests choose what becomes of them."""
    folder = tmp_path_factory.mktemp("waiting")
    with live(folder, module="tests.server.idle", requests_per_minute=10**6) as found:
        yield found


@pytest.fixture
def ann(browser: Browser, server: Live) -> Iterator[Person]:
    with person(browser, server.url) as found:
        found.sign_in()
        yield found


def state(page: Page) -> str:
    return page.locator(".head .state").inner_text()


def test_started_by_the_form_and_watched_to_its_end(ann: Person, server: Live) -> None:
    page = ann.go("/")
    page.get_by_role("link", name="New conversion").click()
    page.locator("#source").fill("data/two")
    page.get_by_role("textbox", name="Target").fill("data/watched")
    expect(page.locator("#cast")).to_be_hidden()
    page.get_by_text("Advanced", exact=True).click()
    for name, value in ADVANCED.items():
        page.locator(f"#{name}").fill(value)
    page.get_by_label("Layout as text").fill(LAYOUT)
    page.get_by_role("button", name="Preview").click()
    answer = page.get_by_role("heading", name="Preview: nothing has started yet")
    expect(answer).to_be_focused()
    expect(answer).to_be_in_viewport()
    expect(page.get_by_role("img", name="Target mesh")).to_be_visible()
    page.evaluate("window.isTheSamePage = true")
    folder = server.log.parent
    (folder / HOLD).touch()
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/conversions/*")
    assert page.evaluate("window.isTheSamePage") is None
    page.evaluate("window.isTheSamePage = true")
    expect(page.locator("[data-live=percent]")).to_have_text("50 %")
    (folder / HOLD).unlink()
    expect(page.get_by_role("status")).to_have_text("The conversion has succeeded.")
    assert state(page) == "succeeded"
    assert page.evaluate("window.isTheSamePage") is True
    expect(page.get_by_role("heading", name="Report of data/watched")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    data = folder / "data"
    assert not reshard.verify(data / "two", data / "watched").differences


def test_the_layout_follows_source_and_mesh_until_it_is_changed(ann: Person) -> None:
    page = ann.go("/new-conversion")
    text = page.get_by_label("Layout as text")
    expect(text).to_have_value("")
    page.locator("#source").fill("data/two")
    page.locator("#source").blur()
    expect(text).to_have_value(re.compile(r"^# Layout of 'data/two'\."))
    page.get_by_label("Mesh", exact=True).fill("tensor=2")
    page.get_by_label("Mesh", exact=True).blur()
    expect(text).to_have_value(re.compile(r"mesh: \{axes: \[tensor\], shape: \[2\]\}"))
    text.fill(LAYOUT)
    page.get_by_label("Mesh", exact=True).fill("x=2")
    page.get_by_label("Mesh", exact=True).blur()
    expect(text).to_have_value(LAYOUT)


def test_a_status_is_said_once_a_second_at_most(ann: Person) -> None:
    """By a clock of the page that goes only as the test says."""
    ann.page.clock.install(time=0)
    page = ann.go("/")
    page.clock.pause_at(10_000)
    said = []
    for number in range(40):
        page.evaluate(f"say('say {number}')")
        page.clock.run_for(60)
        said.append(page.evaluate("document.getElementById('status').textContent"))
    page.clock.run_for(1000)
    assert page.evaluate("document.getElementById('status').textContent") == "say 39"
    changes = [step for step, (before, after) in enumerate(pairwise(said)) if before != after]
    gaps = [60 * (after - before) for before, after in pairwise(changes)]
    assert len(changes) >= 2 and all(gap > 900 for gap in gaps), said


def test_progress_is_shown_as_it_happens(browser: Browser, waiting: Live) -> None:
    with person(browser, waiting.url) as someone, waiting.client() as client:
        someone.sign_in()
        new = client.post(URL, json={"source": "data/a", "target": "data/b"}).json()["id"]
        page = someone.go(f"/conversions/{new}")
        expect(page.locator(".head .state")).to_have_text("queued")
        page.evaluate("window.isTheSamePage = true")
        with records(waiting) as db:
            claim = begun(db, new)
            claims.set_progress(db, claim, progress(40))
            expect(page.locator("[data-live=percent]")).to_have_text("40 %")
            assert page.get_by_role("progressbar").evaluate("at => at.value") == 40
            expect(page.locator(".head .state")).to_have_text("running")
            expect(page.locator("[data-live=moved]")).to_have_text("400 MiB of 0.98 GiB")
            expect(page.locator("[data-live=rate]")).to_have_text("2.50 MiB/s")
            expect(page.locator("[data-live=left]")).to_have_text("3 min 20 s")
            expect(page.locator("[data-live=tensor]")).to_have_text("params/<b>kernel")
            expect(page.get_by_role("status")).to_have_text("running, 40 %")
            shown = page.locator(".facts").first.inner_text()
            page.reload()
            assert page.locator(".facts").first.inner_text() == shown
            page.evaluate("window.isTheSamePage = true")
            claims.set_progress(db, claim, progress(70))
            expect(page.locator("[data-live=percent]")).to_have_text("70 %")
            error = {"title": "It broke", "detail": "no space; free some", "remedy": "free some"}
            claims.finish(db, claim, "failed", error=error)
        expect(page.get_by_role("status")).to_have_text("The conversion has failed.")
        expect(page.get_by_role("heading", name="It broke")).to_be_visible()
        assert page.evaluate("window.isTheSamePage") is True


def progress(percent: int) -> ProgressState:
    return ProgressState(
        stage="copying", moved_bytes=percent * 10 << 20, total_bytes=1000 << 20, tasks_done=percent, tasks=100,
        tensor="params/<b>kernel", bytes_per_second=2.5 * 2**20, seconds_left=200,
    )  # fmt: skip


@contextmanager
def records(server: Live) -> Iterator[sa.Engine]:
    """The records of a server, of which this process carries the conversions out."""
    db = open_database(Settings(state=server.log.parent / "state"))
    try:
        yield db
    finally:
        db.dispose()


def test_cancelled_and_tried_again(browser: Browser, waiting: Live) -> None:
    with person(browser, waiting.url) as someone:
        someone.sign_in()
        page = someone.go("/new-conversion?source=data/a&target=data/stopped")
        page.get_by_role("button", name="Start now").click()
        page.wait_for_url("**/conversions/*")
        page.locator("summary", has_text="Cancel").click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".head .state")).to_have_text("cancelled")
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".head .state")).to_have_text("queued")


def press_until(page: Page, name: str) -> None:
    """Presses Tab until the element with this name has the focus; the focus must be visible at each step."""
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => { const at = document.activeElement; return [
              (at.getAttribute("aria-label") || (at.labels && at.labels[0] || at).textContent).trim(),
              getComputedStyle(at).outlineStyle, parseFloat(getComputedStyle(at).outlineWidth)]; }"""
        )
        assert found[1] != "none" and found[2] >= 2, found
        if found[0].startswith(name):
            return
    raise AssertionError(f"{name} is not reached by the keyboard")


def test_by_keyboard_alone(browser: Browser, server: Live) -> None:
    with person(browser, server.url) as someone:
        page = someone.go("/sign-in")
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type("ann-secret-token")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{server.url}/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        press_until(page, "New conversion")
        page.keyboard.press("Enter")
        page.wait_for_url("**/new-conversion")
        press_until(page, "Source")
        page.keyboard.type("data/run/1")
        press_until(page, "Target")
        page.keyboard.type("data/by-keyboard")
        press_until(page, "Start")
        page.keyboard.press("Enter")
        page.wait_for_url("**/conversions/*")
        expect(page.locator(".head .state")).to_have_text("succeeded")
        expect(page.locator("summary", has_text="Delete the record")).to_be_visible()
        press_until(page, "Delete the record")
        page.keyboard.press("Enter")
        press_until(page, "Delete the record")
        page.keyboard.press("Enter")
        page.wait_for_url("**/conversions")
        press_until(page, "Sign out")
        page.keyboard.press("Enter")
        page.wait_for_url("**/sign-in")


def test_without_javascript(browser: Browser, server: Live) -> None:
    with person(browser, server.url, java_script_enabled=False) as someone:
        page = someone.sign_in()
        page.get_by_role("link", name="Checkpoints").click()
        page.get_by_role("link", name="Convert step 1 of data/run").click()
        page.get_by_role("textbox", name="Target").fill("data/without")
        page.get_by_role("button", name="Start now").click()
        page.wait_for_url("**/conversions/*")
        while state(page) not in ENDED:
            page.reload()
        assert state(page) == "succeeded"
        page.get_by_role("link", name="Plan", exact=True).click()
        expect(page.get_by_role("img", name="Source mesh")).to_be_visible()
        page.get_by_text("As tables").click()
        expect(page.get_by_role("cell", name="data=1, model=1").first).to_be_visible()


def test_a_list_stays_fresh(browser: Browser, waiting: Live) -> None:
    with person(browser, waiting.url) as someone, waiting.client() as client:
        someone.sign_in()
        new = client.post(URL, json={"source": "data/a", "target": "data/listed"}).json()["id"]
        someone.page.clock.install()
        page = someone.go("/conversions")
        link = page.locator(f'a[href="/conversions/{new}"]')
        link.focus()
        row = page.get_by_role("row").filter(has=link)
        expect(row.locator(".state")).to_have_text("queued")
        client.post(f"{URL}/{new}:cancel").raise_for_status()
        page.clock.fast_forward(REFRESHED)
        expect(row.locator(".state")).to_have_text("cancelled")
        assert link.evaluate("at => at === document.activeElement")


def test_chosen_ones_are_cancelled_and_stay_chosen_until_then(
    browser: Browser, waiting: Live
) -> None:
    with person(browser, waiting.url) as someone, waiting.client() as client:
        someone.sign_in()
        body = {"source": "data/a", "target": "data/chosen"}
        new = client.post(URL, json=body).json()["id"]
        someone.page.clock.install()
        page = someone.go("/conversions")
        page.get_by_label("Choose data/chosen").check()
        summary = page.locator("summary", has_text="Cancel chosen conversions")
        summary.click()
        other = client.post(URL, json={**body, "target": "data/came-later"}).json()["id"]
        page.clock.fast_forward(REFRESHED)
        expect(page.locator(f'a[href="/conversions/{other}"]')).to_be_visible()
        expect(page.get_by_label("Choose data/chosen")).to_be_checked()
        expect(page.get_by_label("Choose data/came-later")).not_to_be_checked()
        expect(summary).to_be_focused()
        page.get_by_role("button", name="Cancel chosen conversions").click()
        expect(page.get_by_role("heading", name="1 of 1 cancelled")).to_be_visible()
        assert client.get(f"{URL}/{new}").json()["state"] == "cancelled"
        assert client.get(f"{URL}/{other}").json()["state"] == "queued"


def test_a_planning_ones_bar_has_no_value(browser: Browser, waiting: Live) -> None:
    with person(browser, waiting.url) as someone, waiting.client() as client:
        someone.sign_in()
        new = client.post(URL, json={"source": "data/a", "target": "data/planned"}).json()["id"]
        page = someone.go(f"/conversions/{new}")
        expect(page.get_by_text("Waiting")).to_be_visible()
        expect(page.get_by_role("progressbar")).to_have_count(0)
        with records(waiting) as db:
            claim = begun(db, new)
            bar = page.get_by_role("progressbar")
            expect(bar).to_be_visible()
            expect(page.locator("[data-live=percent]")).to_have_text("planning")
            expect(page.get_by_text("Waiting")).to_be_hidden()
            assert bar.evaluate("at => at.position") == -1
            assert "%" not in page.locator("main").inner_text()
            claims.set_progress(db, claim, progress(10))
            expect(page.locator("[data-live=percent]")).to_have_text("10 %")
            assert bar.evaluate("at => at.position") == 0.1
            claims.finish(db, claim, "cancelled")


def test_columns_stay_where_they_are(browser: Browser, waiting: Live) -> None:
    """Whatever progress, reasons and names come into them."""
    places = "() => [...document.querySelectorAll('.list thead th')].map((at) => at.getBoundingClientRect().x)"
    with person(browser, waiting.url) as someone, waiting.client() as client:
        someone.sign_in()
        body = {"source": "data/stays", "target": "data/short"}
        new = client.post(URL, json=body).json()["id"]
        someone.page.clock.install()
        page = someone.go("/conversions?source=stays")
        before = page.evaluate(places)
        with records(waiting) as db:
            claim = begun(db, new)
            claims.set_progress(db, claim, progress(40))
            page.clock.fast_forward(REFRESHED)
            expect(page.locator(".list progress")).to_be_visible()
            assert page.evaluate(places) == before
            error = {"title": "t", "detail": "a reason " * 20}
            claims.finish(db, claim, "failed", error=error)
        client.post(URL, json={**body, "target": "data/" + "long" * 40}).raise_for_status()
        page.clock.fast_forward(REFRESHED)
        expect(page.get_by_text("a reason")).to_be_visible()
        expect(page.locator(".list tbody tr")).to_have_count(2)
        assert len(before) == 6 and page.evaluate(places) == before


def test_ages_are_said_as_by_the_server(ann: Person) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    ann.page.clock.set_fixed_time(now)
    page = ann.go("/")
    for seconds in (
        5,
        61,
        59 * 60 + 59,
        7201,
        86401,
        29.5 * 86400,
        40 * 86400,
        -130,
        -7300,
        -90000,
    ):
        at = now - timedelta(seconds=seconds)
        told = page.evaluate("at => ago(new Date(at))", at.isoformat())
        assert told == rendering.ago_text(at, now), seconds


def test_one_row_of_navigation_in_a_narrow_window(browser: Browser, server: Live) -> None:
    with person(browser, server.url, viewport={"width": 390, "height": 844}) as someone:
        page = someone.sign_in()
        links = page.get_by_role("navigation", name="Pages").get_by_role("link")
        boxes = [box for link in links.all() if (box := link.bounding_box())]
        assert len(boxes) == 6
        assert len({round(box["y"]) for box in boxes}) == 1
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
        page = someone.go("/checkpoints")
        cells = page.get_by_role("row").nth(1).locator("th, td").all()
        places = {round(cell.evaluate("at => at.getBoundingClientRect().y")) for cell in cells}
        assert len(places) == len(cells) > 2


def test_a_long_list_is_not_cut(browser: Browser, waiting: Live) -> None:
    with person(browser, waiting.url) as someone, waiting.client() as client:
        for number in range(20):
            body = {"source": "data/a", "target": f"data/row{number}"}
            client.post(URL, json=body).raise_for_status()
        someone.sign_in()
        page = someone.go("/conversions")
        assert page.get_by_role("row").count() > 20
        assert page.locator(".wide").evaluate("box => box.scrollHeight <= box.clientHeight")
