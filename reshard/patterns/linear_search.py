"""Searches with RE2, in time linear in the text for every pattern."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Spans = list[tuple[int, int]]
"""Start and end of the match and its groups, in bytes; (-1, -1) for a group that did not match."""

Searcher = Callable[[bytes, int, int], Spans]
"""Finds the first match in a text in UTF-8, between two positions."""


class TooLargeError(Exception):
    """A pattern that needs more memory than allowed."""


def searcher(source: str, *, captures: bool, max_bytes: int) -> Searcher:
    """A compiled pattern of RE2's own dialect.

    Args:
        captures: whether groups are found; without them only the match is.
        max_bytes: memory that the pattern and its searches may take.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = max_bytes
    options.never_capture = not captures
    try:
        compiled = re2.compile(source.encode(), options=options)
    except re2.error as error:
        raise TooLargeError(_text(error)) from None
    finally:
        re2.purge()  # its cache would keep every pattern that a client ever sent
    return _direct(compiled, re2) or _by_match(compiled)


def _direct(compiled: Any, re2: Any) -> Searcher | None:
    """The search below the package's Match objects, three times as fast; None if a version lacks it."""
    match = getattr(getattr(compiled, "_regexp", None), "Match", None)
    anchor = getattr(getattr(re2, "_Anchor", None), "UNANCHORED", None)
    if match is None or anchor is None:
        return None
    return partial(match, anchor)


def _by_match(compiled: Any) -> Searcher:
    def search(text: bytes, begin: int, end: int) -> Spans:
        match = compiled.search(text, begin, end)
        groups = range(compiled.groups + 1)
        return [(-1, -1) if match is None else match.span(group) for group in groups]

    return search


def _text(error: Exception) -> str:
    found = error.args[0] if error.args else ""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
