"""Stores many step numbers as arithmetic progressions, since training runs save at regular steps."""

from __future__ import annotations

from collections.abc import Iterable

Progression = tuple[int, int, int]
"""First step, last step, and the distance between neighbours."""


def progressions(steps: Iterable[int]) -> list[Progression]:
    """The steps as progressions, found greedily in ascending order."""
    found: list[Progression] = []
    ordered = sorted(set(steps))
    begin = 0
    while begin < len(ordered):
        end = _end(ordered, begin)
        stride = ordered[begin + 1] - ordered[begin] if end > begin else 1
        found.append((ordered[begin], ordered[end], stride))
        begin = end + 1
    return found


def _end(ordered: list[int], begin: int) -> int:
    """Index of the last step of the progression that starts at ``begin``.

    A progression has one step, or at least three; two only at the end.
    """
    if begin + 1 == len(ordered):
        return begin
    stride, end = ordered[begin + 1] - ordered[begin], begin + 1
    while end + 1 < len(ordered) and ordered[end + 1] - ordered[end] == stride:
        end += 1
    return end if end > begin + 1 or end + 1 == len(ordered) else begin


def expanded(known: Iterable[Progression]) -> set[int]:
    """All steps of the progressions."""
    return {step for first, last, stride in known for step in range(first, last + 1, stride)}


def among(known: Iterable[Progression], steps: Iterable[int]) -> set[int]:
    """The steps that are in one of the progressions."""
    listed = list(known)
    return {
        step
        for step in steps
        if any(first <= step <= last and (step - first) % by == 0 for first, last, by in listed)
    }
