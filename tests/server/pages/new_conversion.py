"""The form of a new conversion: what tests write into it, and the request that it makes."""

from __future__ import annotations

from reshard_server.db.conversions import conversions

from tests.server.pages.browser import Browser
from tests.server.served import Served

FORM = "/new-conversion"
YAML = 'mesh: {axes: [x], shape: [4]}\nrules:\n  - {match: "kernel", axes: [null, x]}\n'
GOOD = {"source": "data/run/1", "target": "data/out", "do": "start"}
MAPPED = "drop: ['^step$']\r\nmap:\r\n- {from: params/kernel, to: 'k.{h}', shape: (h d) e -> e d}\r\n- {from: params/bias, to: b}"


def made(served: Served, browser: Browser) -> dict[str, object]:
    """The request of the conversion whose page this is."""
    found = conversions.get(served.db, browser.path.removeprefix("/conversions/"))
    assert found is not None
    return found.request.model_dump(mode="json")
