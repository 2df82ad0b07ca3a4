"""How records show themselves: one line for a small one, a few lines for what a call returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST = 3
"""As many parts are shown; the others are counted."""


def several(
    kind: str, headline: str, parts: Sequence[object] = (), rest: Iterable[str] = ()
) -> str:
    """The kind and a headline, then the first parts and other sentences, a line each.

    >>> print(several("Report", "5 numbers", [1, 2, 3, 4, 5], ["warning: few"]))
    Report(5 numbers)
      1
      2
      3
      … and 2 more
      warning: few
    """
    more = [f"… and {len(parts) - MOST:,} more"] if len(parts) > MOST else []
    lines = [*map(str, parts[:MOST]), *more, *rest]
    return "\n".join([f"{kind}({headline})", *(f"  {line}" for line in lines)])


def counted(count: int, noun: str) -> str:
    """``1 tensor``, ``2,000 tensors``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def warned(warnings: Iterable[str]) -> list[str]:
    """The lines for warnings."""
    return [f"warning: {text}" for text in warnings]
