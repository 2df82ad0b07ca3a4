"""Byte ranges and entity tags of RFC 9110."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reshard_server.errors.problems import RANGE, ProblemError

_RANGE = re.compile(r"bytes=(\d{1,19})?-(\d{1,19})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start:stop`` of ``total``; ``is_part`` if the answer is 206."""

    start: int
    stop: int
    total: int
    is_part: bool = True

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def content_range(self) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{self.total}"


def byte_range(requested: str | None, if_range: str | None, tag: str, total: int) -> ByteRange:
    """The requested range; all bytes if there is no range, more than one, or if ``If-Range`` names another state.

    A malformed range is ignored, as the standard says. Raises ProblemError (416) for a range without a byte.
    """
    whole = ByteRange(0, total, total, is_part=False)
    match = _RANGE.fullmatch((requested or "").strip())
    if match is None or (if_range is not None and if_range.strip() != tag):
        return whole
    first, last = match[1], match[2]
    if first is None and last is None:
        return whole
    if first is None:
        start, stop = max(0, total - int(last)), total
    else:
        start, stop = int(first), total if last is None else min(int(last) + 1, total)
        if last is not None and int(last) < start:
            return whole
    if start >= stop:
        raise ProblemError(
            RANGE,
            f"the range {requested!r} has none of the {total} bytes; request bytes within them",
            "Range",
            "request bytes within them",
            headers={"Content-Range": f"bytes */{total}", "Accept-Ranges": "bytes"},
        )
    return ByteRange(start, stop, total)


def is_known(if_none_match: str | None, tag: str) -> bool:
    """Whether the client's tags name this state; weak comparison, as for any GET."""
    given = [known.strip() for known in (if_none_match or "").split(",")]
    return "*" in given or tag in (known.removeprefix("W/") for known in given)
