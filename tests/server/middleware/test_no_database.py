"""The database goes away under a server that runs: problems with 503 until it is back, then everything works again."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.server.live import live
from tests.server.postgres import start_postgres

URL = "/v1/conversions"


def test_requests_are_refused_while_the_database_is_gone(tmp_path: Path) -> None:
    postgres = start_postgres()
    try:
        with (
            live(tmp_path, database_url=postgres.new_database()) as server,
            server.client() as client,
        ):
            assert client.get(URL).status_code == 200
            postgres.process.send_signal(signal.SIGQUIT)
            postgres.process.wait(120)
            asked = {"source": "data/a", "target": "data/b", "mesh": "x=2"}
            for answer in (
                client.get(URL),
                client.post(URL, json=asked),
                client.get(f"{URL}/none"),
            ):
                assert answer.status_code == 503, answer.text
                assert answer.headers["Retry-After"] == "10"
                assert answer.json()["type"] == "urn:reshard:problem:unavailable"
                assert answer.json()["detail"] == (
                    "the database does not answer; send the request again later, and see the server's log"
                )
            assert client.get("/readyz").status_code == 503
            assert client.get("/livez").status_code == 200
            assert "reshard_records_up 0.0" in client.get("/metrics").text
            assert any(
                "the database does not answer: " in line["message"] for line in server.lines()
            )
            assert server.end(60) == 0
    finally:
        postgres.end()
