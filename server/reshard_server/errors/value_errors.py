"""Messages for invalid values of a request, with the expected and the actual value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

LONGEST = 60

_EXPECTED = {
    "missing": "it is missing",
    "extra_forbidden": "there is no member of this name; correct the name, or leave it out",
    "string_type": "expected text",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "literal_error": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "string_too_short": "expected at least {min_length} characters",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "expected at least {min_length} of them",
    "too_long": "expected at most {max_length} of them",
    **dict.fromkeys(("list_type", "tuple_type"), "expected a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "expected an object"
    ),
    "value_error": "{error}",
}
"""Messages by pydantic's kinds of errors; other kinds keep pydantic's message."""

_NOTHING_FOUND = frozenset({"missing", "extra_forbidden", "value_error"})
_COUNTED = frozenset({"string_too_short", "string_too_long", "too_short", "too_long"})


_BRANCHES = frozenset({"str", "int", "dict[str,any]"})
"""pydantic adds these to the place of a value with several possible types."""


def mistakes(errors: Sequence[Mapping[str, Any]]) -> list[tuple[tuple[Any, ...], str]]:
    """Each invalid place with its message, from pydantic's errors; one message names all types that are possible
    at a place."""
    return [
        _several(found) if len(found) > 1 else (found[0]["loc"], mistake(found[0]))
        for _, group in groupby(errors, _place)
        if (found := list(group))
    ]


def _place(error: Mapping[str, Any]) -> tuple[Any, ...]:
    place: tuple[Any, ...] = error["loc"]
    return place[:-1] if place and place[-1] in _BRANCHES else place


def _several(errors: Sequence[Mapping[str, Any]]) -> tuple[tuple[Any, ...], str]:
    types = [expected(e).removeprefix("expected ") for e in errors]
    return _place(errors[0]), f"expected {' or '.join(types)}{_found(errors[0])}"


def mistake(error: Mapping[str, Any]) -> str:
    """The message for one of pydantic's errors; values are cut to ``LONGEST`` characters."""
    return expected(error) + _found(error)


def expected(error: Mapping[str, Any]) -> str:
    """The message for one of pydantic's errors, without the value, which may be a secret."""
    words = _EXPECTED.get(error["type"])
    return str(error["msg"]) if words is None else words.format(**error.get("ctx", {}))


def _found(error: Mapping[str, Any]) -> str:
    kind = error["type"]
    if kind not in _EXPECTED or kind in _NOTHING_FOUND or "input" not in error:
        return ""
    return f", found {_shown(error['input'], counted=kind in _COUNTED)}"


def _shown(value: object, *, counted: bool) -> str:
    if counted and isinstance(value, str | list | tuple | dict):
        return str(len(value))
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
