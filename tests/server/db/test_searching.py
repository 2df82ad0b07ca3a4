"""Conversions searched by a text in the source and by labels; on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.database import open_database
from reshard_server.schemas.conversion import OneTarget
from reshard_server.settings import Settings

SOURCES = ("data/Llama-3/step_100", "data/llama/stepx100", "data/50 %/é", "data/a_b\\c")


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    url = None
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").new_database()
    engine = open_database(Settings(state=tmp_path, database_url=url))
    for number, source in enumerate(SOURCES):
        body = {"source": source, "target": f"data/{number}", "labels": {"n": str(number % 2)}}
        labels = {"odd": ""} if number == 3 else {}
        body["labels"] = {**body["labels"], **labels}  # type: ignore[dict-item]
        conversions.create(engine, token="ann", request=OneTarget.model_validate(body))
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(source_part="LLAMA"), {0, 1}),
        (Filters(source_part="step_100"), {0}),
        (Filters(source_part="%"), {2}),
        (Filters(source_part="é"), {2}),
        (Filters(source_part="\\"), {3}),
        (Filters(source_part="/"), {0, 1, 2, 3}),
        (Filters(source_part="none"), set()),
        (Filters(label_key="n"), {0, 1, 2, 3}),
        (Filters(label_key="odd"), {3}),
        (Filters(label_key="N"), set()),
        (Filters(labels=(("odd", ""),)), {3}),
        (Filters(labels=(("n", "1"),), source_part="llama"), {1}),
        (Filters(token="bob", source_part="llama"), set()),
    ],
)
def test_what_is_found(db: sa.Engine, filters: Filters, found: set[int]) -> None:
    page = conversions.page(db, filters, 10)
    assert {SOURCES.index(c.request.source) for c in page.conversions} == found


def test_pages_of_what_is_found(db: sa.Engine) -> None:
    filters = Filters(source_part="step")
    first = conversions.page(db, filters, 1)
    assert first.next_page_token is not None
    second = conversions.page(db, filters, 1, first.next_page_token)
    sources = [c.request.source for page in (first, second) for c in page.conversions]
    assert sources == [SOURCES[1], SOURCES[0]] and second.next_page_token is None
