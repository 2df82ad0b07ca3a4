"""Maps as pages: listed with the recipes, and a page for each version."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from reshard_server.pages import stored as pages

from tests.server.pages.browser import Browser
from tests.server.served import Served

TEXT = "# for people\nmap:\n- {from: w, to: served.weight, shape: a b -> b a}\n"


@pytest.fixture
def stored(served: Served) -> Served:
    """Two versions of a map."""
    for given in ({"map": [{"from": "w", "to": "v"}]}, TEXT):
        answer = served.ask("PUT", "/v1/maps/hf", json={"map": given})
        assert answer.status_code == 201
    return served


def test_none_yet(ann: Browser) -> None:
    page = ann.go("/maps")
    assert "No map is stored yet. PUT /v1/maps/NAME stores one." in page.text
    assert "Recipes come with the server: maxtext-deepseek-v3" in page.text
    assert "/new-conversion?map=maxtext-gemma2" in page.links
    assert ann.go("/maps/none").headings[0] == (1, "There is nothing here")


@pytest.mark.usefixtures("stored")
def test_listed_by_name(ann: Browser, signed_in: Callable[[str], Browser]) -> None:
    page = ann.go("/maps")
    assert "hf 2 just now ann with this map" in page.text
    assert page.links.count("/new-conversion?map=hf") == 1
    eve = signed_in("eve").go("/maps")
    assert "with this map" not in eve.text
    assert not [x for x in eve.links if x.startswith("/new-")]


@pytest.mark.usefixtures("stored")
def test_its_versions(ann: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ann.go("/maps/hf")
    for words in ("Map hf", "Version 2", "By ann", "# for people map: - {from: w"):
        assert words in page.text, (words, page.text)
    versions = [x for x in page.links if x.startswith("/maps/hf@")]
    assert versions == ["/maps/hf@2", "/maps/hf@1"]
    assert "/new-conversion?map=hf%402" in page.links
    assert '{"from": "w", "to": "v"}' in ann.go("/maps/hf@1").text
    monkeypatch.setattr(pages, "PAGE_SIZE", 1)
    (older,) = [x for x in ann.go("/maps/hf").links if "page_token" in x]
    assert "/maps/hf@1" in ann.go(older).links


def test_a_schedule_takes_a_map(stored: Served, ann: Browser) -> None:
    ann.go("/new-schedule")
    fields = {
        "name": "s", "source": "data/run", "target": "data/hf/{step}", "to": "safetensors", "map": "hf", "sizes": "a=4",
    }  # fmt: skip
    ann.submit("/new-schedule", fields)
    [target] = stored.ask("GET", "/v1/schedules/s").json()["schedule"]["targets"]
    assert (target["map"], target["to"], target["sizes"]) == ("hf", "safetensors", {"a": 4})
    assert "map hf" in ann.text, ann.text
