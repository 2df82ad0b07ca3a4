"""Conversions searched by a text in the source and by labels; on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.schemas.conversion import OneTarget

SOURCES = ("data/Llama-3/step_100", "data/llama/stepx100", "data/50 %/é", "data/a_b\\c")


@pytest.fixture
def db(each_db: sa.Engine) -> sa.Engine:
    for number, source in enumerate(SOURCES):
        body = {"source": source, "target": f"data/{number}", "labels": {"n": str(number % 2)}}
        labels = {"odd": ""} if number == 3 else {}
        body["labels"] = {**body["labels"], **labels}
        conversions.create(each_db, token="ann", request=OneTarget.model_validate(body))
    return each_db


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
