"""The parts of a conversion by host, and its throughput: right for one part and a thousand, also as text, and kept up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, expect
from reshard_server.db.conversions import claims
from reshard_server.db.conversions.parts import Split
from reshard_server.db.database import open_database
from reshard_server.db.tables import CONVERSIONS
from reshard_server.pages.part_strips import MOST_CELLS, MOST_HOSTS, WAITING, rows_of
from reshard_server.pages.throughput import throughput_of
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
    OverTime,
    PartState,
)
from reshard_server.settings import Settings
from reshard_server.worker.moved_over_time import MOST_INTERVALS, MovedOverTime

from tests.server.claimed import begun
from tests.server.live import Live, live
from tests.server.pages.chromium import person
from tests.server.pages.looks import check
from tests.server.pages.progress import PROGRESS
from tests.server.served import Served

URL = "/v1/conversions"
START = datetime(2026, 11, 21, 3, tzinfo=UTC)


def part(number: int, state: Any = "running", host: str | None = "one", **more: Any) -> PartState:
    at = None if state == "queued" else PROGRESS
    return PartState(number=number, state=state, host=host, progress=at, **more)


def drawn(parts: list[PartState]) -> dict[str, list[tuple[str, str]]]:
    return {row.name: [(cell.name, cell.label) for cell in row.cells] for row in rows_of(parts)}


def test_a_row_for_each_host_and_one_for_those_that_wait() -> None:
    parts = [
        part(1, "succeeded", "two"),
        part(2, "running", "one"),
        part(3, "failed", "two"),
        part(4, "queued", None),
        part(5, "queued", "two"),  # its host died
        part(6, "cancelling", "one"),
    ]
    assert drawn(parts) == {
        "one": [("part 2", "80"), ("part 6", "■")],
        "two": [("part 1", "✓"), ("part 3", "!")],
        WAITING: [("part 4", "…"), ("part 5", "…")],
    }
    assert drawn(parts[:1]) == {"two": [("part 1", "✓")]}
    assert drawn([]) == {}


def test_many_parts_are_counts_but_those_that_run_or_failed() -> None:
    parts = [part(n, "succeeded", f"h{n % 2}") for n in range(500)]
    parts += [part(500, "failed", "h0"), part(501, "running", "h1")]
    parts += [part(n, "queued", None) for n in range(502, 1000)]
    assert drawn(parts) == {
        "h0": [("part 500", "!"), ("250 parts", "250 ✓")],
        "h1": [("part 501", "80"), ("250 parts", "250 ✓")],
        WAITING: [("498 parts", "498 …")],
    }


@pytest.mark.parametrize("number", [1, MOST_CELLS, MOST_CELLS + 1, 1000])
@pytest.mark.parametrize("state", ["running", "failed", "succeeded"])
def test_no_part_is_left_out_and_the_strip_stays_small(number: int, state: Any) -> None:
    rows = rows_of([part(n, state, f"h{n:04}") for n in range(number)])
    cells = [cell for row in rows for cell in row.cells]
    counted = Counter[str]()
    for cell in cells:
        counted[cell.state] += 1 if cell.part else int(cell.name.split()[0])
    assert counted == {state: number}
    assert len(rows) <= MOST_HOSTS + 1
    assert len(cells) <= MOST_CELLS + MOST_HOSTS + 1
    if number == 1000:
        assert rows[-1].name == "960 more hosts"


def test_intervals_keep_every_byte_and_stay_few() -> None:
    run, moved = MovedOverTime(), 1000
    for tenth in range(5000):
        run.add(7 + tenth / 10, moved)
        moved += 30
    made = OverTime(**run.document())
    assert sum(made.moved_bytes) == 4999 * 30
    assert (made.interval_seconds, round(made.seconds, 1)) == (16, 499.9)
    assert MOST_INTERVALS / 2 <= len(made.moved_bytes) <= MOST_INTERVALS
    assert set(made.moved_bytes[:-1]) <= {4797, 4798, 4799, 4800, 4801, 4802, 4803}


def test_a_slow_task_moved_its_bytes_evenly() -> None:
    run = MovedOverTime(wall_clock=lambda: 4e9)
    run.add(0, 0)
    run.add(2, 400)
    run.add(2, 500)
    run.add(2.25, 400)  # started over
    assert run.document() == {
        "began_at": 4e9,
        "seconds": 2.25,
        "interval_seconds": 0.5,
        "moved_bytes": [100, 100, 100, 100, 100],
    }


def conversion(**members: Any) -> Conversion:
    return Conversion(
        id="x", state="running", done=False, request=OneTarget(source="data/a", target="data/b"),
        created_by="ann", created_at=START, revision=1, **members,
    )  # fmt: skip


def test_the_curve_of_a_run() -> None:
    over = OverTime(began_at=START, seconds=2.25, interval_seconds=1, moved_bytes=[100, 300, 50])
    found = throughput_of(
        conversion(progress=PROGRESS.model_copy(update={"over_time": over})), START
    )
    assert found is not None
    assert (found.seconds, found.highest, found.mean, found.last) == (2.25, 300, 200, 200)
    assert found.path == (
        "M0,100 L0.0,66.7 L266.7,66.7 L266.7,0.0 L533.3,0.0 L533.3,33.3 L600.0,33.3 L600,100Z"
    )
    hangs = conversion(progress=PROGRESS.model_copy(update={"over_time": over}))
    late = throughput_of(hangs, START + timedelta(seconds=9))
    assert late is not None
    assert (late.seconds, late.mean, late.last) == (9, 50, 0)
    nothing = over.model_copy(update={"moved_bytes": [0, 0, 0]})
    for at in (None, PROGRESS, PROGRESS.model_copy(update={"over_time": nothing})):
        assert throughput_of(conversion(progress=at), START) is None


def test_a_listing_has_no_progress_over_time(served: Served) -> None:
    new = served.create()
    over = OverTime(began_at=START, seconds=1, interval_seconds=1, moved_bytes=[5])
    at = PROGRESS.model_copy(update={"over_time": over})
    claims.set_progress(served.db, begun(served.db, new), at)
    whole = served.ask("GET", f"{URL}/{new}", "ann").json()["progress"]
    assert whole.pop("over_time")["moved_bytes"] == [5]
    [listed] = served.ask("GET", URL, "ann").json()["conversions"]
    assert listed["progress"] == whole


def test_the_curve_of_parts_is_the_sum_of_their_means() -> None:
    """30 MiB in 10 s, then beside it the same in half the time; what an earlier attempt moved is none of it."""
    parts = [
        part(1, started_at=START),
        part(2, started_at=START + timedelta(seconds=5)),
        part(3, "queued", None),
    ]
    found = throughput_of(conversion(parts=parts, part_counts={}), START + timedelta(seconds=10))
    assert found is not None
    assert found.seconds == pytest.approx(10)
    assert found.mean == pytest.approx(6 * 2**20)
    assert (found.highest, found.last) == (pytest.approx(9 * 2**20), pytest.approx(9 * 2**20))
    assert throughput_of(conversion(parts=parts[2:], part_counts={}), START) is None


def test_the_curve_of_a_few_parts_is_the_sum_of_their_intervals() -> None:
    parts = []
    for number, moved in enumerate(([600, 0, 300], [0, 300])):
        over = OverTime(
            began_at=START + timedelta(seconds=number),
            seconds=len(moved),
            interval_seconds=1,
            moved_bytes=moved,
        )
        at = PROGRESS.model_copy(update={"over_time": over})
        parts.append(part(number, started_at=START).model_copy(update={"progress": at}))
    found = throughput_of(conversion(parts=parts, part_counts={}), START + timedelta(seconds=50))
    assert found is not None
    assert (found.seconds, found.of_means) == (pytest.approx(3), False)
    rates = (found.highest, found.mean, found.last)
    assert rates == (pytest.approx(600), pytest.approx(400), pytest.approx(600))


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that carries no conversion out, so that tests choose what becomes of them."""
    folder = tmp_path_factory.mktemp("parts")
    with live(folder, module="tests.server.idle", requests_per_minute=10**6) as found:
        yield found


@contextmanager
def split(server: Live, parts: int) -> Iterator[tuple[str, Callable[..., None]]]:
    """A conversion in parts, and a function that changes one of them."""
    body = {"source": "data/a", "target": "data/b", "parts": parts}
    with server.client() as client:
        new = client.post(URL, json=body).json()["id"]
    db = open_database(Settings(state=server.log.parent / "state"))
    claim = begun(db, new)
    claims.set_progress(db, claim, PROGRESS)
    assert claims.split(db, claim, Split(parts, 50 << 20, False, 1 << 30, 2))
    now = datetime.now(UTC).timestamp()

    def change(numbers: range, state: str, host: str | None, moved: int = 0, **more: Any) -> None:
        row = CONVERSIONS.c
        at = PROGRESS.model_copy(update={"moved_bytes": moved << 20})
        values = {
            "state": state,
            "host": host,
            "progress": at.model_dump(mode="json"),
            "attempts": 1,
        }
        values |= {"started_at": now - 60 + min(numbers) % 7, "revision": row.revision + 1, **more}
        with db.begin() as connection:
            where = (row.parent == new, row.part.in_(numbers))
            connection.execute(sa.update(CONVERSIONS).where(*where).values(values))

    try:
        yield new, change
    finally:
        db.dispose()


@pytest.mark.parametrize("parts", [9, 1000])
def test_everybody_sees_the_parts(
    browser: Browser, waiting: Live, pages_shown: Path | None, parts: int
) -> None:
    found: dict[str, str] = {}
    with (
        split(waiting, parts) as (new, change),
        person(browser, waiting.url, bypass_csp=True) as someone,
    ):
        third = parts // 3
        change(range(1, third + 1), "succeeded", "worker-1.cluster.example", 50)
        change(range(third + 1, third + 3), "running", "worker-" + "long-" * 20 + "name", 30)
        change(range(third + 3, third + 4), "running", "worker-1.cluster.example", 21)
        error = {"title": "It broke", "detail": "no space left in data/b"}
        change(range(third + 4, third + 5), "failed", "worker-2", 13, error=error)
        someone.sign_in()
        page = someone.go(f"/conversions/{new}")
        page.get_by_text("Parts as a table").click()
        look = partial(check, page, found, pages_shown)
        look(f"{parts} parts")
        page.set_viewport_size({"width": 1280, "height": 900})
        expect(page.get_by_role("img", name="Up to ")).to_be_visible()
        row = page.get_by_role("row").filter(has_text=f"part {third + 3}")
        assert row.inner_text().split("\t")[1:6] == [
            "worker-1.cluster.example",
            "running",
            "42 %",
            "2.50 MiB/s",
            "params/kernel",
        ]
        expect(page.get_by_role("row").filter(has_text="no space left in data/b")).to_be_visible()
        assert page.locator(".strip svg").count() < 120
    assert found == {}


def test_a_part_that_moves_on_is_seen_without_reloading(browser: Browser, waiting: Live) -> None:
    with split(waiting, 3) as (new, change), person(browser, waiting.url) as someone:
        someone.sign_in()
        page = someone.go(f"/conversions/{new}")
        expect(page.locator(".strip dt")).to_have_text([WAITING])
        page.evaluate("window.isTheSamePage = true")
        page.get_by_text("Parts as a table").click()
        change(range(1, 2), "running", "one", 25)
        change(range(2, 3), "succeeded", "two", 50)
        expect(page.locator(".strip dt")).to_have_text(["one", "two", WAITING])
        expect(page.locator(".strip text")).to_have_text(["50", "✓", "…"])
        expect(page.get_by_role("table", name="What each part does now")).to_be_visible()
        assert page.evaluate("window.isTheSamePage") is True


def test_without_javascript_the_parts_are_there(browser: Browser, waiting: Live) -> None:
    with (
        split(waiting, 2) as (new, change),
        person(browser, waiting.url, java_script_enabled=False) as someone,
    ):
        change(range(1, 3), "running", "one", 25)
        someone.sign_in()
        page = someone.go(f"/conversions/{new}")
        expect(page.locator(".strip text")).to_have_text(["50", "50"])
