"""A database that answers and takes no changes: read-only, or its disk is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from reshard_server.errors.error_handlers import FULL, READ_ONLY, Unavailable, unavailable

from tests.server.postgres import Postgres
from tests.server.served import Served

LAYOUT = {"layout": {"mesh": {"axes": ["x"], "shape": [2]}, "rules": []}}
SCHEDULE = {
    "when": {"cron": "0 3 * * *", "source": "data/a"},
    "targets": [{"target": "data/{time}", "mesh": "x=2"}],
}


def sqlite_read_only(served: Served) -> None:
    _for_each(served.db, "PRAGMA query_only = ON")


def sqlite_full(served: Served) -> None:
    _for_each(served.db, "PRAGMA max_page_count = 1")  # SQLite takes what there is


def _for_each(db: sa.Engine, pragma: str) -> None:
    def check_out(connection: Any, *_: Any) -> None:
        connection.execute(pragma)

    sa.event.listen(db, "checkout", check_out)


def postgres_read_only(served: Served) -> None:
    url = served.db.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        name = served.db.url.database
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    served.db.dispose()


@pytest.mark.parametrize(
    ("becomes", "said"),
    [(sqlite_read_only, READ_ONLY), (sqlite_full, FULL), (postgres_read_only, READ_ONLY)],
)
def test_changes_are_refused_in_words_and_what_is_there_is_told(
    becomes: Callable[[Served], None],
    said: Unavailable,
    serve: Callable[..., Served],
    postgres: Postgres,
) -> None:
    is_postgres = becomes is postgres_read_only
    served = serve(**({"database_url": postgres.new_database()} if is_postgres else {}))
    for name in range(200):  # full pages, so that there is no room for another
        served.create(target=f"data/t{name}")
    job = served.create()
    becomes(served)
    big = {"layout": {**LAYOUT["layout"], "rules": [{"match": "x" * 500, "axes": []}] * 50}}
    refused = 0
    for method, path, body in (
        ("POST", "/v1/conversions", {"source": "data/a", "target": "data/c", "labels": {"x": "y" * 250}}),
        ("PUT", "/v1/layouts/serving", big),
        ("PUT", "/v1/schedules/nightly", SCHEDULE),
        ("POST", f"/v1/conversions/{job}:cancel", None),
    ):  # fmt: skip
        answer = served.ask(method, path, json=body)
        if said is FULL and answer.status_code < 300:
            continue  # it found room in a page that was there
        assert answer.status_code == 503, (path, answer.text)
        assert answer.headers["Retry-After"] == "10"
        found = answer.json()
        assert found["type"] == "urn:reshard:problem:unavailable"
        assert (found["detail"], found["remedy"]) == (said.detail, said.remedy)
        refused += 1
    assert refused
    assert served.ask("GET", f"/v1/conversions/{job}").status_code == 200
    assert served.ask("GET", "/v1/conversions").status_code == 200


def test_ready_says_why_no_heartbeat_is_taken(served: Served) -> None:
    assert served.ask("GET", "/readyz", None).status_code == 200
    served.app.state.services.queue.refused = FULL
    answer = served.ask("GET", "/readyz", None)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
    assert answer.json()["detail"] == (
        "the disk of the server's records is full, so nothing can be changed; free space there, and send the request again"
    )
    assert served.ask("GET", "/livez", None).status_code == 200


@pytest.mark.parametrize("error", [sa.exc.IntegrityError, sa.exc.ProgrammingError])
def test_errors_of_our_own_are_no_reason_to_wait(error: type[sa.exc.DBAPIError]) -> None:
    assert unavailable(error("INSERT", None, Exception("twice"))) is None
    assert unavailable(ValueError("x")) is None


def test_a_server_without_codes_is_understood_by_its_words() -> None:
    for words, said in (
        ("attempt to write a readonly database", READ_ONLY),
        ("database or disk is full", FULL),
    ):
        error = sa.exc.OperationalError("INSERT", None, Exception(words))
        assert unavailable(error) is said
