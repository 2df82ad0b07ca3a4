"""Stores many step numbers as arithmetic progressions, since training runs save at regular steps."""

from __future__ import annotations

from collections.abc import Iterable

Progression = tuple[int, int, int]
"""First, last, and the distance of two neighbours."""


def progressions(steps: Iterable[int]) -> list[Progression]:
    """The fewest that a look at each step in turn finds."""
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
    """Index of the last step of the progression that begins there; of two steps only one is taken, unless no more follow."""
    if begin + 1 == len(ordered):
        return begin
    stride, end = ordered[begin + 1] - ordered[begin], begin + 1
    while end + 1 < len(ordered) and ordered[end + 1] - ordered[end] == stride:
        end += 1
    return end if end > begin + 1 or end + 1 == len(ordered) else begin


def expanded(found: Iterable[Progression]) -> set[int]:
    """Every step of them."""
    return {step for first, last, stride in found for step in range(first, last + 1, stride)}


def among(found: Iterable[Progression], steps: Iterable[int]) -> set[int]:
    """Those of these steps that are in one of them."""
    known = list(found)
    return {
        step
        for step in steps
        if any(first <= step <= last and (step - first) % by == 0 for first, last, by in known)
    }
