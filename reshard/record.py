"""Record: the result of a call, as JSON and as a short text; and small pieces of text."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from reshard.geometry.sizes import format_bytes


class Record(Struct, frozen=True):
    """The base of the records that public functions return."""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values for ``json.dumps``, with the keys that ``--json`` writes.

        ``docs/reference/json-output.md`` lists them. Numbers that are not finite are text, since JSON has none.
        """
        return values(self._document())

    def _document(self) -> Struct:
        """Its public form: the record itself, unless a document of ``reshard.documents`` replaces it."""
        return self


def values(document: Struct) -> dict[str, Any]:
    """A document as plain values for ``json.dumps``; members that are not set are left out."""
    found: dict[str, Any] = plain(to_builtins(document, enc_hook=dict))  # of a read-only mapping
    return found


def plain(value: Any) -> Any:
    """The value for JSON, which has no infinity: numbers that are not finite become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    return value


MOST = 3
"""Most parts that are shown; the others are counted."""


_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, turn the writing direction, or do not encode."""


def origins_text(names: Sequence[str]) -> str:
    """The tensors that one was made of: the first, and the number of others.

    >>> origins_text(["q", "k", "v"]), origins_text([])
    ("'q' and 2 more", 'a constant')
    """
    if not names:
        return "a constant"
    return repr(names[0]) + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")


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


def safe(text: str, keep: str = "") -> str:
    r"""``text`` with escapes for everything that could control a terminal.

    Names come from files and may contain anything. Characters of ``keep`` stay.

    >>> safe("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or _is_safe(c) else _escaped(c) for c in text)


def _is_safe(char: str) -> bool:
    return unicodedata.category(char) not in _UNSAFE


def _escaped(char: str) -> str:
    return ascii(char)[1:-1]


def rate_text(nbytes: float, seconds: float) -> str:
    """Bytes per second; empty if the time was too short to measure."""
    return f"{format_bytes(nbytes / seconds)}/s" if seconds > 1e-3 else "–"


def duration_text(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
