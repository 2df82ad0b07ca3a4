"""The fields of a form for the members of a request; a member's type decides how its field is read and shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from reshard.options import CHANGES, OUTPUT
from reshard_server.errors.problems import INVALID, ProblemError
from reshard_server.pages.visitor import lines_of, number_of
from reshard_server.schemas.base import Whole
from reshard_server.schemas.conversion import DECLARED, OneTarget, TargetRequest
from reshard_server.schemas.job import Labels, Pairs, Patterns, Seconds

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_REPLACEMENTS = {"rename": "NEW", "cast": "DTYPE"}
"""The right side of a rule, for messages."""


@dataclass(frozen=True)
class TextField:
    """The functions that read a member from a field's text, and show it in the field.

    Attributes:
        read: from the member's name and the text; returns None for the default.
        show: from the member's value.
    """

    read: Callable[[str, str], Any]
    show: Callable[[Any], str]


def pairs_of(name: str, text: str) -> list[tuple[str, str]]:
    """The rules of a field, one per line. ProblemError for a line that is not a rule."""
    found = []
    for line in lines_of(text):
        pattern, equals, to = line.rpartition("=")
        if not equals:
            what = _REPLACEMENTS.get(name, "NEW")
            raise ProblemError(
                INVALID,
                f"{line[:100]!r} has no '='; write PATTERN={what}, one per line",
                f"/{name}",
            )
        found.append((pattern.strip(), to.strip()))
    return found


def _pairs_text(pairs: Iterable[tuple[str, object]]) -> str:
    return "\n".join(f"{one}={other}" for one, other in pairs)


def _seconds(name: str, text: str) -> float | None:
    if not text:
        return None
    if not _SECONDS.fullmatch(text):
        raise ProblemError(
            INVALID, f"{name} is {text[:40]!r}; expected seconds, such as 3600", f"/{name}"
        )
    return float(text)


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _labels(name: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines_of(text):
        key, equals, value = line.partition("=")
        if not equals:
            raise ProblemError(
                INVALID, f"{line[:100]!r} has no '='; write KEY=VALUE, one per line", f"/{name}"
            )
        if key.strip() in found:
            raise ProblemError(
                INVALID,
                f"the key {key.strip()[:64]!r} occurs twice; keep one line of it",
                f"/{name}",
            )
        found[key.strip()] = value.strip()
    return found


def _sizes(name: str, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in lines_of(text):
        key, _, value = line.partition("=")
        if not value.strip().isdecimal() or not key.strip().isidentifier():
            raise ProblemError(
                INVALID, f"{line[:100]!r} is no size; write NAME=N, one per line", f"/{name}"
            )
        found[key.strip()] = int(value[:20])
    return found


_TEXT = TextField(lambda _, text: text or None, str)
_NUMBER = TextField(number_of, str)


_SIZES = TextField(
    lambda name, text: _sizes(name, text) or None, lambda sizes: _pairs_text(sizes.items())
)
_LINES = TextField(lambda _, text: lines_of(text), "\n".join)
_BY_NAME = {"sizes": _SIZES, "deltas": _LINES}
_BY_TYPE = (
    (get_args(Patterns)[0], _LINES),
    (get_args(Pairs)[0], TextField(pairs_of, _pairs_text)),
    (get_args(Labels)[0], TextField(_labels, lambda labels: _pairs_text(labels.items()))),
    (int, _NUMBER),
    (Whole | None, _NUMBER),
    (Seconds | None, TextField(_seconds, _seconds_text)),
)

_NO_FIELDS = ("step", "item")
"""Members without a field: on the page a checkpoint has its own path."""

MEMBERS: Mapping[str, FieldInfo] = {
    name: found
    for name, found in {**TargetRequest.model_fields, **OneTarget.model_fields}.items()
    if name not in _NO_FIELDS
}
FLAGS = tuple(name for name, found in MEMBERS.items() if found.annotation is bool)
MEMBER_TEXTS = tuple(name for name in MEMBERS if name not in FLAGS)
DEFAULTS = {
    name: MEMBERS[name].default for name in MEMBER_TEXTS if isinstance(MEMBERS[name].default, str)
}
"""The initial values of fields that are not empty."""

FIELDS_OF = {
    "changes": [
        name
        for name, option in DECLARED.items()
        if option.group == CHANGES and name not in (*FLAGS, "map")
    ],
    "output": [
        name for name, option in DECLARED.items() if option.group == OUTPUT and name not in FLAGS
    ],
    "flags": [name for name in DECLARED if name in FLAGS],
}
"""The fields of declared options, by their place on the page; the map and those of the group LAYOUT have places of their own."""


def text_field(name: str) -> TextField:
    """The field of a member, by its type."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    annotation = MEMBERS[name].annotation
    return next((found for kind, found in _BY_TYPE if kind == annotation), _TEXT)


def members_of(names: Iterable[str], values: Mapping[str, str]) -> dict[str, Any]:
    """The members from their fields' texts; an empty field means the default."""
    return {name: _member(name, values[name]) for name in names}


def _member(name: str, text: str) -> Any:
    found, member = text_field(name).read(name, text), MEMBERS[name]
    if found is not None:
        return found
    return text if member.is_required() else member.get_default()


def text_of(name: str, value: Any) -> str:
    """The text of a field for a member's value; empty for a default that the form leaves empty."""
    if value is None or (name not in DEFAULTS and value == MEMBERS[name].get_default()):
        return ""
    return text_field(name).show(value)
