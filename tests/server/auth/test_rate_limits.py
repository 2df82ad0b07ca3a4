"""Requests per minute: a burst, then an even rate, for each caller separately."""

from __future__ import annotations

import pytest
from reshard_server.auth import limits
from reshard_server.auth.limits import RateLimits
from reshard_server.errors.problems import ProblemError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def allowed(found: RateLimits, caller: str = "ann") -> bool:
    try:
        found.take(caller)
    except ProblemError:
        return False
    return True


def test_a_burst_then_an_even_rate() -> None:
    clock = Clock()
    found = RateLimits(60, clock)
    assert [allowed(found) for _ in range(61)] == [True] * 60 + [False]
    clock.now = 2.5
    assert [allowed(found) for _ in range(3)] == [True, True, False]
    clock.now = 1000.0
    assert [allowed(found) for _ in range(61)] == [True] * 60 + [False]


def test_callers_do_not_share() -> None:
    found = RateLimits(1, Clock())
    assert [allowed(found, who) for who in ("ann", "bob", "ann")] == [True, True, False]


def test_how_long_to_wait_is_told() -> None:
    found = RateLimits(2, Clock())
    found.take("ann"), found.take("ann")
    with pytest.raises(ProblemError) as raised:
        found.take("ann")
    assert raised.value.headers == {"Retry-After": "30"}
    assert raised.value.detail == (
        "more than 2 requests in a minute; wait 30 s, and send fewer requests (events and ETags save some)"
    )


def test_callers_that_are_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CALLERS", 10)
    found = RateLimits(1, Clock())
    assert all(allowed(found, str(i)) for i in range(100))
    assert allowed(found, "0")
    assert not allowed(found, "99")
