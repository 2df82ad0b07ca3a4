"""The benchmark of overload, in a short form: its counts, never its times."""

from __future__ import annotations

from benchmarks.service.overload import ALLOWED, Load, overload


def test_an_overloaded_server_answers_and_loses_nothing() -> None:
    seen, wrong = overload(Load(seconds=3, watchers=40, queued=6, inspects=20))
    assert wrong == []
    assert {status for _, status in seen.answers} <= ALLOWED
    assert seen.answers["convert", 202] >= 6
    assert seen.answers["inspect", 200] > 0
    assert seen.left["watch"] > 0
