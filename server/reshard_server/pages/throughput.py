"""A picture of the bytes per second of a conversion over time, from its intervals or its parts', or from the times of many parts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from reshard_server.schemas.conversion import (
    Conversion,
    OverTime,
    PartState,
)

WIDTH, HEIGHT = 600, 100
"""Of the picture's own coordinates; it is drawn as wide as the page."""

INTERVALS = 60
"""The number of steps for a conversion in parts."""


class Throughput(NamedTuple):
    """The picture, and the numbers that it shows.

    Attributes:
        path: of an area, from the start to the end.
        seconds: from the start to the end.
        highest, mean, last: bytes per second.
        of_means: True if each part counts by its mean.
    """

    path: str
    seconds: float
    highest: float
    mean: float
    last: float
    of_means: bool


def throughput_of(conversion: Conversion, now: datetime) -> Throughput | None:
    """The picture of a conversion that has moved something; of several attempts, of the last one."""
    if conversion.parts is not None:
        means = not any(part.progress and part.progress.over_time for part in conversion.parts)
        spans = [span for part in conversion.parts for span in _of_part(part, now)]
        return _drawn(_summed(spans), of_means=means)
    own = conversion.progress.over_time if conversion.progress else None
    if own is None:
        return None
    steps = [(end - begin, moved / (end - begin)) for begin, end, moved in _of_intervals(own)]
    quiet = (now - own.began_at).total_seconds() - own.seconds
    if not conversion.done and quiet > own.interval_seconds:
        steps.append((quiet, 0.0))
    return _drawn(steps, of_means=False)


Step = tuple[float, float]
"""Seconds, and bytes per second in them."""

Span = tuple[float, float, float]
"""A time from and to, and the bytes that were moved evenly in it."""


def _of_intervals(own: OverTime) -> Iterable[Span]:
    began = own.began_at.timestamp()
    for number, moved in enumerate(own.moved_bytes):
        begin = number * own.interval_seconds
        end = min(begin + own.interval_seconds, own.seconds)  # the last interval is not over
        if end > begin:
            yield began + begin, began + end, moved


def _of_part(part: PartState, now: datetime) -> Iterable[Span]:
    at = part.progress
    if at is None or part.started_at is None:
        return
    if at.over_time is not None:
        yield from _of_intervals(at.over_time)
        return
    begin, end = part.started_at.timestamp(), (part.ended_at or now).timestamp()
    yield begin, max(end, begin + 1e-3), max(0, at.moved_bytes - at.resumed_bytes)


def _summed(spans: list[Span]) -> list[Step]:
    if not spans:
        return []
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    seconds = (last - first) / INTERVALS
    moved_bytes = [0.0] * INTERVALS
    for begin, end, moved in spans:
        for number in range(int((begin - first) / seconds), INTERVALS):
            at = first + number * seconds
            if at >= end:
                break
            overlap = max(0.0, min(end, at + seconds) - max(begin, at))
            moved_bytes[number] += moved * overlap / (end - begin)
    return [(seconds, moved / seconds) for moved in moved_bytes]


def _drawn(steps: list[Step], *, of_means: bool) -> Throughput | None:
    highest = max((rate for _, rate in steps), default=0.0)
    if highest <= 0:
        return None
    seconds = sum(each for each, _ in steps)
    points, at = [f"M0,{HEIGHT}"], 0.0
    for each, rate in steps:
        y = HEIGHT * (1 - rate / highest)
        points.append(f"L{WIDTH * at / seconds:.1f},{y:.1f}")
        at += each
        points.append(f"L{WIDTH * at / seconds:.1f},{y:.1f}")
    moved = sum(each * rate for each, rate in steps)
    path = " ".join([*points, f"L{WIDTH},{HEIGHT}Z"])
    return Throughput(path, seconds, highest, moved / seconds, steps[-1][1], of_means)
