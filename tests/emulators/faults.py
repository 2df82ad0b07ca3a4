"""What a server does wrong, and with which requests."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tests.emulators.apis.error_answers import ErrorAnswer


class Refuse(msgspec.Struct, frozen=True):
    """Answers an error, and does nothing."""

    error: ErrorAnswer


class Delay(msgspec.Struct, frozen=True):
    """Does the request after a time, and answers then."""

    seconds: float


class Hang(msgspec.Struct, frozen=True):
    """Never answers; ``done`` if the request is done all the same."""

    done: bool = False


class Disconnect(msgspec.Struct, frozen=True):
    """Closes the connection without an answer; ``done`` if the request is done all the same."""

    done: bool = False


class BreakAnswer(msgspec.Struct, frozen=True):
    """Closes the connection when so many bytes of the answer's body have been sent."""

    after_bytes: int


class BreakUpload(msgspec.Struct, frozen=True):
    """Closes the connection when so many bytes of the request's body have arrived, and does nothing."""

    after_bytes: int


class Flip(msgspec.Struct, frozen=True):
    """Flips one bit of the answer's body, or of the request's."""

    at_byte: int
    upload: bool = False


class DoTwice(msgspec.Struct, frozen=True):
    """Does the request twice, as a proxy that repeats it, and answers what came of the second time."""


class DoLater(msgspec.Struct, frozen=True):
    """Closes the connection, and does the request when so many later ones have been answered."""

    requests: int = 1


class Call(msgspec.Struct, frozen=True):
    """Calls a function of the test, before the request is done or between that and the answer."""

    function: Callable[[], object]
    done: bool = False


Fault: TypeAlias = (
    Refuse | Delay | Hang | Disconnect | BreakAnswer | BreakUpload | Flip | DoTwice | DoLater | Call
)  # fmt: skip


class Rule(msgspec.Struct):
    """Which requests a fault strikes.

    ``operation`` is a word of ``tests/emulators/request_log.py``, ``key`` a pattern that is found in ``bucket/key``, and
    ``header`` one that is found in a line ``name: value`` of the request. ``nth`` counts the requests that match;
    the fault strikes it and ``times - 1`` after it (None: all). With ``chance`` below 1 it strikes that part of them.
    """

    fault: Fault
    operation: str = ""
    key: str = ""
    header: str = ""
    nth: int = 1
    times: int | None = 1
    chance: float = 1.0
    seed: int = 0
    matched: int = 0
    struck: int = 0


class Faults:
    """The rules of a server; of those that strike a request, the first one counts."""

    def __init__(self) -> None:
        self._rules: list[tuple[Rule, random.Random]] = []
        self._lock = threading.Lock()
        self.cleared = threading.Event()

    def add(
        self, fault: Fault, *, operation: str = "", key: str = "", header: str = "", nth: int = 1,
        times: int | None = 1, chance: float = 1.0, seed: int = 0,
    ) -> Rule:  # fmt: skip
        """See ``Rule``, which is returned: its ``struck`` says how often it struck."""
        rule = Rule(fault, operation, key, header, nth, times, chance, seed)
        with self._lock:
            self._rules.append((rule, random.Random(seed)))
        return rule

    def clear(self) -> None:
        """Forgets every rule and lets go what hangs."""
        with self._lock:
            self._rules.clear()
            self.cleared.set()
            self.cleared = threading.Event()

    def strike(self, operation: str, where: str, headers: dict[str, str]) -> Fault | None:
        """The fault of a request, which every matching rule counts."""
        chosen = None
        with self._lock:
            for rule, chances in self._rules:
                if _matches(rule, operation, where, headers):
                    rule.matched += 1
                    if chosen is None and _strikes(rule, chances):
                        rule.struck += 1
                        chosen = rule.fault
        return chosen


def _matches(rule: Rule, operation: str, where: str, headers: dict[str, str]) -> bool:
    if rule.operation not in {"", operation} or not re.search(rule.key, where):
        return False
    lines = (f"{name}: {value}" for name, value in headers.items())
    return not rule.header or any(re.search(rule.header, line) for line in lines)


def _strikes(rule: Rule, chances: random.Random) -> bool:
    if rule.matched < rule.nth or (rule.times is not None and rule.struck >= rule.times):
        return False
    return rule.chance >= 1 or chances.random() < rule.chance
