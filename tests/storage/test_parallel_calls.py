"""Calls are made at once for a store whose requests take long, and keep their order."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from msgspec import Struct

from reshard.storage.base import Traits
from reshard.storage.calls import REQUESTS_AT_ONCE, each_at_once
from reshard.storage.local.store import LOCAL


class FarStore(Struct):
    traits: Traits = Traits(range_bytes=8 << 20)


FAR = FarStore()


def workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("reshard.metadata")}


def test_results_come_in_order() -> None:
    numbers = range(10 * REQUESTS_AT_ONCE)
    assert list(each_at_once(FAR, lambda n: n * n, numbers)) == [n * n for n in numbers]


def test_requests_wait_together() -> None:
    together = threading.Barrier(REQUESTS_AT_ONCE)
    results = each_at_once(FAR, lambda _: together.wait(60), range(REQUESTS_AT_ONCE))
    assert sorted(results) == list(range(REQUESTS_AT_ONCE))


def test_a_disk_is_read_in_the_calling_thread() -> None:
    found = each_at_once(LOCAL, lambda _: threading.current_thread(), range(3))
    assert set(found) == {threading.current_thread()}


def test_few_results_wait_for_a_slow_caller() -> None:
    taken = 0

    def numbers() -> Iterator[int]:
        nonlocal taken
        for number in range(10_000):
            taken = number
            yield number

    others = workers()
    results = each_at_once(FAR, lambda n: n, numbers())
    assert next(results) == 0
    assert taken < 5 * REQUESTS_AT_ONCE
    results.close()
    assert workers() <= others


def test_an_error_ends_it() -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number

    others = workers()
    with pytest.raises(ValueError, match="five"):
        list(each_at_once(FAR, fail, range(1000)))
    assert workers() <= others
