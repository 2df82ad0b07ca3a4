"""A storage that hangs delays requests for conversions, but not requests that read their state."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from reshard_server import services
from reshard_server.jobs import conversion_job

from tests.server.served import Served

URL = "/v1/conversions"


def test_looks_are_answered_while_checks_hang(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = served.create()
    usual, back, many = conversion_job.check_job, threading.Event(), services.LOOKERS + 1
    hanging = threading.Semaphore(0)

    def hangs(*arguments: Any) -> None:
        hanging.release()
        assert back.wait(300)
        usual(*arguments)

    monkeypatch.setattr(conversion_job, "check_job", hangs)
    with ThreadPoolExecutor(many + 1) as clients:
        asked = [clients.submit(served.create, target=f"data/t{n}") for n in range(many)]
        try:
            for _ in range(services.CHECKERS):
                assert hanging.acquire(timeout=300)
            for path in (f"{URL}/{there}", URL):
                assert clients.submit(served.ask, "GET", path).result(300).status_code == 200
            assert not any(one.done() for one in asked)
        finally:
            back.set()
        assert len({one.result(300) for one in asked}) == many
