"""A PostgreSQL that becomes read-only under a server that runs, and takes changes again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.server.live import live
from tests.server.postgres import Postgres

URL = "/v1/conversions"


def set_read_only(url: str, value: str) -> None:
    """As after a failover: connections end, and new ones are read-only, or are not."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
        if value == "on":
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )


def wait_for(ask: Callable[[], httpx.Response], status: int) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while (answer := ask()).status_code != status:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)
    found: dict[str, Any] = answer.json()
    return found


def wait_for_read_only(client: httpx.Client) -> None:
    """Until the server is unready for this reason; while the database is slow, it has another."""
    deadline = time.monotonic() + 120
    while "read-only" not in wait_for(lambda: client.get("/readyz"), 503)["detail"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_read_only_database_is_told_and_left(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.new_database()
    wish = {"source": "data/a", "target": "data/b"}
    with live(tmp_path, database_url=url) as server, server.client() as client:
        there = client.post(URL, json=wish).json()["id"]
        set_read_only(url, "on")
        wait_for_read_only(client)
        answers = [
            client.post(URL, json=wish) for _ in range(15)
        ]  # over every connection of the pool
        assert {answer.status_code for answer in answers} == {503}
        assert "read-only" in answers[-1].json()["detail"]
        wait_for_read_only(client)
        assert client.get(f"{URL}/{there}").status_code == 200
        assert client.get("/livez").status_code == 200
        set_read_only(url, "off")
        wait_for(lambda: client.get("/readyz"), 200)
        wait_for(lambda: client.post(URL, json=wish), 202)
        assert server.end(60) == 0
        said = [line for line in server.lines() if line["level"] == "error"]
        assert said == []
