"""Plain data as YAML on one line, as a person writes it in a layout file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Plain = None | int | str | Sequence["Plain"] | Mapping[str, "Plain"]

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OTHER_MEANING = re.compile(r"null|true|false|yes|no|on|off|y|n", re.IGNORECASE)
_SHORT, _LONG = 0x100, 0x10000


def flow(value: Plain) -> str:
    """The value in YAML's flow style; ``parse_yaml`` reads it back.

    >>> flow({"match": "^embed$", "axes": [None, "model"]})
    "{match: '^embed$', axes: [null, model]}"
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{flow(k)}: {flow(v)}' for k, v in value.items())}}}"
    if isinstance(value, str):
        is_bare = _BARE.fullmatch(value) and not _OTHER_MEANING.fullmatch(value)
        return value if is_bare else quoted(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(flow, value))}]"
    return "null" if value is None else str(value)


def quoted(text: str) -> str:
    """The text between quotes: single ones, or double ones where it needs escapes."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < _SHORT
        else f"\\u{code:04x}"
        if code < _LONG
        else f"\\U{code:08x}"
    )
