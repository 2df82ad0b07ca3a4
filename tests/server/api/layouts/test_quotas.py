"""Quotas of layouts and schedules, and listings that stay small however much is stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db import documents as sizes
from reshard_server.db.database import open_database
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import LAYOUT, content_then
from reshard_server.db.tables import LAYOUTS
from reshard_server.settings import MIB, Settings

from tests.server.live import Live, live
from tests.server.postgres import Postgres
from tests.server.served import Served

URL = "/v1/layouts"
SCHEDULES = "/v1/schedules"


def layout(characters: int = 0, size: int = 2) -> dict[str, Any]:
    rules = [{"match": f"{number:08}", "axes": []} for number in range(characters // 40)]
    return {"mesh": {"axes": ["x"], "shape": [size]}, "rules": rules}


def schedule(characters: int = 0) -> dict[str, Any]:
    return {
        "when": {"cron": "0 3 * * *", "source": "data/a"},
        "targets": [{"target": "data/{time}", "layout": layout(characters)}],
    }


@pytest.fixture(params=["sqlite", "postgres"])
def limited(
    request: pytest.FixtureRequest, serve: Callable[..., Served], postgres: Postgres
) -> Callable[..., Served]:
    """Makes an application with settings, on each kind of database."""
    url = {"database_url": postgres.new_database()} if request.param == "postgres" else {}
    return lambda **settings: serve(**settings, **url)


def put(served: Served, name: str, who: str = "ann", **more: int) -> Any:
    return served.ask("PUT", f"{URL}/{name}", who, json={"layout": layout(**more)})


def refused(answer: Any, setting: str, words: str) -> None:
    found = answer.json()
    assert (answer.status_code, found["type"], found.get("quota")) == (
        409, "urn:reshard:problem:quota", setting,
    ), found  # fmt: skip
    assert found["detail"].startswith(words)
    assert found["detail"].endswith(f"or have the setting {setting} raised")


def test_layouts_are_counted_by_token_and_in_all(limited: Callable[..., Served]) -> None:
    served = limited(layouts_per_token=2, layouts=3, layout_versions=2)
    assert [put(served, name).status_code for name in ("a", "b")] == [201, 201]
    refused(
        put(served, "c"),
        "layouts_per_token",
        "3 layouts would be stored by the token 'ann'; this server stores at most 2",
    )
    assert put(served, "c", "bob").status_code == 201
    refused(
        put(served, "d", "bob"),
        "layouts",
        "4 layouts would be stored by all tokens together; this server stores at most 3",
    )
    assert put(served, "a", size=4).status_code == 201
    assert put(served, "a", size=4).status_code == 200  # as it is
    refused(
        put(served, "a", size=8),
        "layout_versions",
        "3 versions of the layout 'a' would be stored; this server stores at most 2",
    )
    assert served.ask("DELETE", f"{URL}/b").status_code == 204
    assert put(served, "c2").status_code == 201


def test_layouts_are_weighed(limited: Callable[..., Served]) -> None:
    served = limited(layout_bytes_per_token=10_000, layout_bytes=12_000)
    assert put(served, "a", characters=8_000).status_code == 201
    answer = put(served, "b", characters=8_000)
    total = int(answer.json()["detail"].split()[0])
    assert 12_000 < total < 20_000
    refused(
        answer,
        "layout_bytes_per_token",
        f"{total} bytes of layouts would be stored by the token 'ann'",
    )
    refused(put(served, "b", "bob", characters=8_000), "layout_bytes", "1")
    assert served.ask("DELETE", f"{URL}/a").status_code == 204
    assert put(served, "b", characters=8_000).status_code == 201


def test_schedules_are_counted_and_weighed(limited: Callable[..., Served]) -> None:
    served = limited(schedules_per_token=2, schedule_bytes_per_token=20_000)

    def stored(name: str, characters: int = 0) -> Any:
        return served.ask("PUT", f"{SCHEDULES}/{name}", json=schedule(characters))

    assert stored("a", 8_000).status_code == 201
    assert stored("a", 9_000).status_code == 200  # in its place
    assert stored("b").status_code == 201
    refused(stored("c"), "schedules_per_token", "3 schedules would be stored by the token 'ann'")
    refused(stored("b", 30_000), "schedule_bytes_per_token", "")
    assert (
        served.ask("GET", f"{SCHEDULES}/b").json()["schedule"]["targets"][0]["layout"] == layout()
    )


def test_deleted_content_is_dropped_unless_a_conversion_needs_it(
    limited: Callable[..., Served],
) -> None:
    served = limited()
    put(served, "used"), put(served, "unused")
    served.create(layout="used")
    for name in ("used", "unused"):
        assert served.ask("DELETE", f"{URL}/{name}").status_code == 204
    assert content_then(served.db, LAYOUT, "used@1", 0) == layout()
    with served.db.connect() as connection:
        found = connection.execute(sa.select(LAYOUTS).where(LAYOUTS.c.name == "unused")).one()
    assert (found.layout, found.bytes) == (None, 0)
    assert put(served, "unused").json()["version"] == 2


def test_listings_leave_large_content_out(limited: Callable[..., Served]) -> None:
    served = limited()
    put(served, "large", characters=8_000), put(served, "small")
    with served.db.begin() as connection:  # as a server of the version before stores it
        connection.execute(sa.update(LAYOUTS).values(bytes=None))
    large, small = served.ask("GET", URL).json()["layouts"]
    assert (large["name"], large["layout"], large["bytes"] > 6_000) == ("large", None, True)
    assert (small["layout"], small["bytes"]) == (layout(), len(str(layout())))
    [version] = served.ask("GET", f"{URL}/large/versions").json()["versions"]
    assert version == large
    assert served.ask("GET", f"{URL}/large").json()["layout"] == layout(8_000)


def test_pages_end_where_entries_are_large(
    limited: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "PAGE_BYTES", 10_000)
    served = limited()
    for number in range(5):
        served.ask("PUT", f"{SCHEDULES}/s{number}", json=schedule(4_000))
        served.create(target=f"data/t{number}", layout=layout(4_000))
    for url, kind in ((SCHEDULES, "schedules"), ("/v1/conversions", "conversions")):
        found, pages, token = [], 0, None
        while pages == 0 or token:
            page = served.ask("GET", url, params={"page_token": token} if token else {}).json()
            found += [entry.get("name") or entry["id"] for entry in page[kind]]
            pages, token = pages + 1, page["next_page_token"]
        assert len(set(found)) == len(found) == 5
        assert 3 <= pages <= 5


def test_memory_stays_bounded_while_many_large_layouts_are_listed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    db = open_database(Settings(state=tmp_path / "state"))
    for number in range(12):
        versions.put(db, LAYOUT, f"l{number:02}", layout(900_000, number + 2), token="ann", is_admin=False, expected=lambda _: True)  # fmt: skip
    db.dispose()
    with live(tmp_path) as server, server.client() as client:
        client.get(URL)
        before = _resident(server)
        for path in (URL, f"{URL}/l00/versions"):
            answer = client.get(path, params={"page_size": 200})
            assert answer.status_code == 200
            assert len(answer.content) < 100_000
        assert _resident(server) - before < 64 * MIB


def _resident(server: Live) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")
