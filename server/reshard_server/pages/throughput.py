"""A picture of the bytes per second of a conversion over time, from its own intervals, or from the times of its parts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from reshard_server.schemas.conversion import Conversion, OverTime, PartState

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
        of_parts: True if each part counts by its mean.
    """

    path: str
    seconds: float
    highest: float
    mean: float
    last: float
    of_parts: bool


def throughput_of(conversion: Conversion, now: datetime) -> Throughput | None:
    """The picture of a conversion that has moved something; of several attempts, of the last one."""
    if conversion.parts is not None:
        return _drawn(_of_parts(conversion.parts, now), of_parts=True)
    own = conversion.progress.over_time if conversion.progress else None
    return None if own is None else _drawn(list(_of_intervals(own)), of_parts=False)


Step = tuple[float, float]
"""Seconds, and bytes per second in them."""


def _of_intervals(own: OverTime) -> Iterable[Step]:
    for number, moved in enumerate(own.moved_bytes):
        # The last interval is not over.
        seconds = min(own.interval_seconds, own.seconds - number * own.interval_seconds)
        if seconds > 0:
            yield seconds, moved / seconds


def _of_parts(parts: Iterable[PartState], now: datetime) -> list[Step]:
    spans = []
    for part in parts:
        if part.started_at is not None and part.progress is not None:
            begin, end = part.started_at.timestamp(), (part.ended_at or now).timestamp()
            moved = part.progress.moved_bytes - part.progress.resumed_bytes
            spans.append((begin, max(end, begin + 1e-3), max(0, moved)))
    if not spans:
        return []
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    seconds = (last - first) / INTERVALS
    moved_bytes = [0.0] * INTERVALS
    for begin, end, moved in spans:
        for number in range(INTERVALS):
            at = first + number * seconds
            overlap = max(0.0, min(end, at + seconds) - max(begin, at))
            moved_bytes[number] += moved * overlap / (end - begin)
    return [(seconds, moved / seconds) for moved in moved_bytes]


def _drawn(steps: list[Step], *, of_parts: bool) -> Throughput | None:
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
    return Throughput(path, seconds, highest, moved / seconds, steps[-1][1], of_parts)
