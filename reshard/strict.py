"""Strict reading of parsed JSON and YAML: a value becomes a record of msgspec, or its first wrong part is named."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

T = TypeVar("T")

Steps = tuple[str | int, ...]
"""The keys and positions that lead to a part of a value."""

Problem = Literal["wrong", "missing", "unknown"]


class WrongPartError(Exception):
    """A part of a value that does not fit its type; each reader makes its own error of it.

    Attributes:
        steps: the way to the part, also where a record lacks it or does not know it.
        part: the part itself; None where it is missing.
        kind: the type that it should have; of an unknown part that of the record around it.
        expected: the description (``msgspec.Meta``) of that type; "" where it has none. A plain part without one, in a part that has one, is
            no part of its own: the part around it is wrong.
    """

    def __init__(
        self, steps: Steps, part: Any, kind: Any, expected: str, problem: Problem = "wrong"
    ) -> None:
        super().__init__(steps)
        self.steps, self.part, self.kind = steps, part, kind
        self.expected, self.problem = expected, problem


def strict(value: Any, kind: type[T]) -> T:
    """The value as a ``kind``; WrongPartError names the first part that does not fit. Nothing is coerced but a list to a tuple."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise _wrong_part(value, kind, (), "") from None


def says(description: str, **limits: Any) -> msgspec.Meta:
    """The annotation of a type, with its description, and with limits such as ``ge`` and ``min_length``."""
    return msgspec.Meta(description=description, **limits)


def keys_of(kind: Any) -> tuple[str, ...]:
    """The keys that a record knows, in their order; none for another type."""
    return tuple(field.encode_name for field in _fields(kind))


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    is_record = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return msgspec.structs.fields(kind) if is_record else ()


def _wrong_part(value: Any, kind: Any, steps: Steps, expected: str) -> WrongPartError:
    """The error of the first wrong part; ``value`` as a whole does not fit."""
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        described = (n.description for n in notes if getattr(n, "description", None))
        return _wrong_part(value, kind, steps, next(described, expected))
    if get_origin(kind) in (Union, UnionType):
        return _wrong_part(value, _member(value, kind), steps, expected)
    parts = _parts(value, kind)
    if isinstance(value, dict) and (fields := {f.encode_name: f for f in _fields(kind)}):
        wrong = _wrong_keys(value, kind, fields, steps, expected)
        if wrong is not None:
            return wrong
        parts = ((k, value[k], field.type) for k, field in fields.items() if k in value)
    for step, part, part_kind in parts:
        try:
            msgspec.convert(part, part_kind)
        except msgspec.ValidationError:
            inner = _wrong_part(part, part_kind, (*steps, step), "")
            if inner.expected or not expected or _fields(inner.kind):
                return inner
    return WrongPartError(steps, value, kind, expected)


def _wrong_keys(
    value: dict[Any, Any],
    kind: Any,
    fields: dict[str, msgspec.structs.FieldInfo],
    steps: Steps,
    expected: str,
) -> WrongPartError | None:
    """The error of the first key of an object that its record does not know, or that it lacks; None without one."""
    unknown = next((key for key in value if key not in fields), None)
    if unknown is not None and kind.__struct_config__.forbid_unknown_fields:
        return WrongPartError((*steps, unknown), value[unknown], kind, expected, "unknown")
    for key, field in fields.items():
        if field.required and key not in value:
            found = _wrong_part(None, field.type, (*steps, key), "")
            return WrongPartError(found.steps, None, found.kind, found.expected, "missing")
    return None


def _parts(value: Any, kind: Any) -> Iterable[tuple[Any, Any, Any]]:
    """The parts of an object or a list, with the types that they should have; none of a value of another kind."""
    origin, kinds = get_origin(kind) or kind, get_args(kind)
    if origin is dict and isinstance(value, dict) and kinds:
        return ((key, part, kinds[1]) for key, part in value.items())
    if origin not in (list, tuple) or not isinstance(value, list | tuple) or not kinds:
        return ()
    if origin is list or kinds[-1] is Ellipsis:
        return ((i, part, kinds[0]) for i, part in enumerate(value))
    is_as_long = len(value) == len(kinds)
    return ((i, p, k) for i, (p, k) in enumerate(zip(value, kinds, strict=False)) if is_as_long)


def _member(value: Any, kind: Any) -> Any:
    """The type in a union that the value comes closest to; the union where none has its kind."""
    members = [m for m in get_args(kind) if m not in (NoneType, msgspec.UnsetType)]
    if len(members) == 1:
        return members[0]
    for member in members:
        plain = get_args(member)[0] if get_origin(member) is Annotated else member
        origin = get_origin(plain) or plain
        if isinstance(value, cast("type", list | tuple if origin in (list, tuple) else origin)):
            return member
    return Any
