"""Lists of conversions: columns that fit the state, times from now, searched, and cancelled together."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from reshard_server.db.conversions import claims, conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.observability import logs
from reshard_server.pages import rendering
from reshard_server.pages.conversion_pages import PAGE_SIZE
from reshard_server.schemas.conversion import SeveralTargets

from tests.server.claimed import begun
from tests.server.pages.browser import Browser, at_once
from tests.server.pages.progress import PROGRESS
from tests.server.served import Served

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def header(page_text: str) -> str:
    """The columns' names."""
    return page_text.partition("newest first ")[2].partition(" data/")[0]


def test_columns_fit_the_state(served: Served, ann: Browser) -> None:
    new = served.create(target="data/out")
    assert header(ann.go("/conversions?state=queued").text).startswith(
        "Choose Target State Place Priority Created"
    )
    claim = begun(served.db, new)
    assert header(ann.go("/conversions?state=running").text) == (
        "Choose Target State Progress Rate Left Started"
    )
    claims.finish(served.db, claim, "succeeded", result=[], progress=PROGRESS)
    page = ann.go("/conversions?state=succeeded")
    assert header(page.text) == "Target State Took Bytes Ended"
    assert "data/out from data/a succeeded 0.0 s 40.0 MiB just now" in at_once(page.text)
    failed = served.create(target="data/broken")
    error = {"title": "It broke", "detail": "no space " + "left " * 60}
    claims.finish(served.db, begun(served.db, failed), "failed", error=error)
    page = ann.go("/conversions?state=failed")
    assert header(page.text) == "Target State Took Bytes Ended Why it failed"
    assert "0.0 s – just now no space left left" in at_once(page.text) and "left …" in at_once(
        page.text
    )
    assert header(ann.go("/conversions").text) == "Target State How it goes Created By"


def test_several_targets_take_one_line(served: Served, ann: Browser) -> None:
    targets = [{"target": f"data/out/{n}"} for n in range(12)]
    request = SeveralTargets.model_validate({"source": "data/a", "targets": targets})
    new = conversions.create(served.db, token="ann", request=request).id
    page = ann.go("/conversions")
    assert "12 targets data/out/0 and others from data/a" in page.text
    assert "data/out/1" not in page.text
    assert ann.go(f"/conversions/{new}").headings[0] == (1, "Conversion to 12 targets")


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=-30), "just now"),
        (timedelta(seconds=59), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(minutes=59, seconds=59), "59 minutes ago"),
        (timedelta(hours=2), "2 hours ago"),
        (timedelta(days=29), "29 days ago"),
        (timedelta(days=30), "2026-10-24"),
        (timedelta(minutes=-5), "in 5 minutes"),
        (timedelta(hours=-25), "in 1 day"),
        (timedelta(days=-40), "2027-01-02"),
    ],
)
def test_times_from_now(ago: timedelta, text: str) -> None:
    assert rendering.ago_text(NOW - ago, NOW) == text


def test_the_absolute_time_is_there_too(served: Served, ann: Browser) -> None:
    found = conversions.get(served.db, served.create())
    assert found is not None
    ann.go("/conversions")
    assert (
        f'datetime="{found.created_at.isoformat()}" title="{rendering.moment_text(found.created_at)}">just now<'
        in ann.answer.text
    )


def test_long_reasons_are_cut_behind_a_word() -> None:
    assert rendering.shortened("short") == "short"
    assert rendering.shortened("many words here", 10) == "many …"


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({"label": "run=7"}, {"one", "two"}),
        ({"label": "run"}, {"one", "two", "three"}),
        ({"label": " run=7 ", "source": "llama"}, {"one"}),
        ({"label": "run=70"}, set()),
        ({"label": "nothing"}, set()),
        ({"label": "odd=a=b"}, {"three"}),
        ({"source": "LLAMA"}, {"one"}),
        ({"source": "data/"}, {"one", "two", "three"}),
        ({"source": "100_"}, {"two"}),
        ({"source": "%"}, set()),
        ({"state": "cancelled"}, {"three"}),
        ({"state": "queued", "label": "run=7"}, {"one", "two"}),
    ],
)
def test_searched(served: Served, ann: Browser, search: dict[str, str], found: set[str]) -> None:
    served.create(source="data/Llama-3/step", target="data/one", labels={"run": "7"})
    served.create(source="data/run/100_", target="data/two", labels={"run": "7", "team": "x"})
    last = served.create(
        source="data/other", target="data/three", labels={"run": "8", "odd": "a=b"}
    )
    served.create("bob", source="data/Llama-3/step", target="data/of-bob", labels={"run": "7"})
    served.ask("POST", f"/v1/conversions/{last}:cancel")
    ann.go("/conversions?" + "&".join(f"{k}={v.replace('%', '%25')}" for k, v in search.items()))
    assert {name for name in ("one", "two", "three") if f"data/{name}" in ann.text} == found
    assert "of-bob" not in ann.text
    assert ("No " in ann.text and "conversion matches. Show all" in ann.text) == (not found)
    for name, value in search.items():
        if name != "state":
            assert f'name="{name}" value="{value.strip()}"' in ann.answer.text


def test_a_label_leads_to_the_others_that_have_it(served: Served, ann: Browser) -> None:
    served.create(labels={"team": "a b&c"})
    page = ann.go("/conversions")
    (link,) = [x for x in page.links if "label=" in x]
    assert "team=a b&c" in ann.go(link).text and "data/b" in ann.text


def test_a_search_goes_on_over_pages(served: Served, ann: Browser) -> None:
    for number in range(PAGE_SIZE + 2):
        served.create(source=f"data/{'x' if number else 'y'}", target=f"data/t{number}")
    ann.go("/conversions?source=x")
    (older,) = [link for link in ann.page.links if "page_token" in link]
    page = ann.go(older)
    assert "data/t1 " in page.text and "data/t0 " not in page.text
    assert "/conversions?source=x" in page.links
    token = older.rpartition("page_token=")[2]
    assert "other filters" in ann.go(f"/conversions?source=y&page_token={token}").text


def test_a_page_token_of_the_version_before_still_works() -> None:
    """Page tokens are not bound to the new filters if these are not used."""
    first = conversions._listing(Filters(token="ann"))
    assert set(first) == {
        "token", "states", "source", "schedule", "labels", "created_after", "created_before"
    }  # fmt: skip
    assert "source_part" in conversions._listing(Filters(source_part="x"))


def test_chosen_ones_are_cancelled_together(served: Served, ann: Browser) -> None:
    waits, runs, ended, left = (served.create(target=f"data/{n}") for n in ("w", "r", "e", "l"))
    begun(served.db, runs)
    of_bob = served.create("bob", target="data/of-bob")
    page = ann.go("/conversions")
    assert ann.answer.text.count('<input type="checkbox" name="id"') == 4
    claims.finish(served.db, begun(served.db, ended), "succeeded", result=[])
    key = page.form("/conversions/cancel").fields["form_key"]
    chosen = [waits, runs, ended, of_bob, "nothing", waits]
    page = cancel(ann, key, chosen)
    assert ann.status == 200
    for words in (
        "2 of 5 cancelled",
        "Cancelled data/w : it waited data/r : it runs, and stops within seconds",
        "data/e : it has ended already",
        f"{of_bob}: there is no conversion '{of_bob}' that this token may see",
        "nothing: there is no conversion 'nothing'",
    ):
        assert words in page.text, (words, page.text)
    states = [served.ask("GET", f"/v1/conversions/{x}").json()["state"] for x in (waits, runs, ended, left)]  # fmt: skip
    assert states == ["cancelled", "cancelling", "succeeded", "queued"]
    assert served.ask("GET", f"/v1/conversions/{of_bob}", "bob").json()["state"] == "queued"
    page = cancel(ann, key, [waits])
    assert "0 of 1 cancelled" in page.text and "data/w : it was cancelled before" in page.text
    assert "No conversion was chosen" in cancel(ann, key, []).text


def cancel(browser: Browser, key: str, chosen: list[str]) -> Any:
    data = {"form_key": key, "id": chosen}
    browser.answer = browser.send(
        "POST", "/conversions/cancel", data=data, headers={"Origin": "http://test"}
    )
    return browser.page


def test_who_may_only_read_cancels_none(
    served: Served, signed_in: Callable[[str], Browser]
) -> None:
    new = served.create("root", target="data/x")
    eve, root = signed_in("eve"), signed_in("root")
    key = eve.go("/").form("/sign-out").fields["form_key"]
    cancel(eve, key, [new])
    assert eve.status == 403 and "lacks the scope" in eve.text
    key = root.go("/conversions").form("/conversions/cancel").fields["form_key"]
    cancel(eve, key, [new])
    assert eve.status == 403
    other = served.create("bob", target="data/y")
    assert "2 of 2 cancelled" in cancel(root, key, [new, other]).text


def test_each_one_is_in_the_audit_log(
    served: Served, ann: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = [served.create(target=f"data/{n}") for n in range(3)]
    key = ann.go("/conversions").form("/conversions/cancel").fields["form_key"]
    with caplog.at_level(logging.INFO, logs.NAME):
        caplog.clear()  # another test's level may have let the requests before through
        cancel(ann, key, chosen)
    (line,) = [r for r in caplog.records if r.name == logs.NAME]
    assert line.__dict__["conversions"].split() == chosen
    assert line.__dict__["targets"] == ["data/0", "data/1", "data/2"]


def test_another_sites_form_cancels_none(served: Served, ann: Browser) -> None:
    new = served.create()
    answer = ann.send(
        "POST", "/conversions/cancel", data={"id": new}, headers={"Origin": "http://test"}
    )
    assert answer.status_code == 403
    assert served.ask("GET", f"/v1/conversions/{new}").json()["state"] == "queued"


def test_the_place_in_the_queue(served: Served, ann: Browser) -> None:
    """Tokens take turns: one of another token's two conversions comes between."""
    first, second = (served.create(target=f"data/{n}") for n in ("one", "two"))
    for number in range(2):
        served.create("bob", target=f"data/of-bob{number}")
    page = ann.go("/conversions?state=queued")
    assert "data/two from data/a queued 3rd in the queue" in page.text
    assert "data/one from data/a queued next in the queue" in page.text
    assert "queued 3rd in the queue just now" in ann.go("/conversions").text
    assert "queued 3rd in the queue 0 just now" in ann.go("/").text
    page = ann.go(f"/conversions/{second}")
    assert "Waiting: 3rd in the queue." in page.text
    begun(served.db, first)
    assert "in the queue" not in ann.go(f"/conversions/{first}").text


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (None, "waits"), (1, "next in the queue"), (2, "2nd in the queue"), (11, "11th in the queue"),
        (21, "21st in the queue"), (113, "113th in the queue"), (1203, "1,203rd in the queue"),
    ],
)  # fmt: skip
def test_places_in_words(place: int | None, text: str) -> None:
    assert rendering.place_text(place) == text


def test_before_the_first_progress_it_plans(served: Served, ann: Browser) -> None:
    new = served.create()
    begun(served.db, new)
    for path in (f"/conversions/{new}", "/conversions", "/conversions?state=running", "/"):
        page = ann.go(path)
        (bar,) = re.findall(r"<progress[^>]*>", ann.answer.text)
        assert "value=" not in bar, path
        assert "planning" in page.text
        for words in ("0 %", "– of –"):
            assert words not in page.text, (path, words)
    assert 'data-live="facts" hidden' in ann.send("GET", f"/conversions/{new}").text


def test_how_one_ended_is_said_first(served: Served, ann: Browser) -> None:
    waited, ran, failed = (served.create(target=f"data/{n}") for n in "wrf")
    served.ask("POST", f"/v1/conversions/{waited}:cancel")
    page = ann.go(f"/conversions/{waited}")
    assert (
        "The conversion was cancelled before it started. Nothing was published at the target."
        in page.text
    )
    claims.finish(served.db, begun(served.db, ran), "cancelled", progress=PROGRESS)
    page = ann.go(f"/conversions/{ran}")
    assert "The conversion was cancelled after 0.0 s, with 40.0 MiB of 50.0 MiB moved." in at_once(
        page.text
    )
    error = {"title": "It broke", "detail": "no space; free some", "remedy": "free some"}
    claims.finish(served.db, begun(served.db, failed), "failed", error=error)
    page = ann.go(f"/conversions/{failed}")
    assert [text for _, text in page.headings][1:3] == ["Outcome", "It broke"]
    assert "The conversion failed after 0.0 s. Nothing was published at the target." in at_once(
        page.text
    )
    for conversion in (waited, ran, failed):
        assert f"/new-conversion?again={conversion}" in ann.go(f"/conversions/{conversion}").links
