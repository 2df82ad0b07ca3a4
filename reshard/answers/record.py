"""Record: the result of a call; its JSON, and the pieces of the short text with which it prints."""

from __future__ import annotations

import gc
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, TypeVar, overload

from msgspec import UNSET, Struct, convert, to_builtins
from msgspec.structs import fields

from reshard.geometry.sizes import format_bytes

S = TypeVar("S")
T = TypeVar("T")


class Json(Struct, frozen=True):
    """The JSON of a record, as far as it is not simply its fields.

    Attributes:
        members: fields and properties, in order; empty for all fields.
        left_out: members that are left out where they have their default.
        listed: mappings by name, of which JSON has the list of values.
        later: members that the answer of an older server lacks.
        only_commands: members that commands print, and no answer by HTTP has.
    """

    members: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    only_commands: tuple[str, ...] = ()


PLAIN = Json()


class Record(Struct, frozen=True):
    """The base of the records that public functions return."""

    JSON: ClassVar[Json] = PLAIN

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values for ``json.dumps``, with the keys that ``--json`` writes.

        ``docs/reference/json-output.md`` lists them. Numbers that are not finite are text, since JSON has none.
        """
        return values(self)


class _Member(Struct, frozen=True):
    """A member of a record's JSON: its attribute, its key, and the value with which it is left out."""

    attribute: str
    key: str
    absent: object
    is_listed: bool


def json_of(kind: type[Struct]) -> Json:
    """The JSON of a kind of records, also of one that is no ``Record``."""
    found: Json = getattr(kind, "JSON", PLAIN)
    return found


@cache
def _members(kind: type[Struct]) -> tuple[_Member, ...]:
    form = json_of(kind)
    keys = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    defaults = {each.name: each.default for each in fields(kind)}
    return tuple(
        _Member(
            name,
            keys.get(name, name),
            defaults[name] if name in form.left_out else UNSET,
            name in form.listed,
        )
        for name in form.members or kind.__struct_fields__
    )


def values(record: Struct) -> dict[str, Any]:
    """A record as plain values for ``json.dumps``; members that are not set are left out."""
    found = {}
    for member in _members(type(record)):
        value = getattr(record, member.attribute)
        if value is UNSET or (member.absent is not UNSET and value == member.absent):
            continue
        found[member.key] = plain([*value.values()] if member.is_listed else value)
    return found


def plain(value: Any) -> Any:
    """The value for JSON, which has no infinity: numbers that are not finite become strings."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Struct):
        return values(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Sequence):
        return list(map(plain, value))
    return to_builtins(value)  # such as a time


def answer_of(command: str, record: Struct | None = None, **more: Any) -> dict[str, Any]:
    """The JSON object of a command: its name, then ``more``, then the members of a record; in plans and reports likewise."""
    answer = {"command": command, **more, **({} if record is None else values(record))}
    for inner in ("plans", "reports"):
        if inner in answer:
            answer[inner] = [{"command": command, **each} for each in answer[inner]]
    return answer


R = TypeVar("R", bound=Struct)


class _Named(Struct, frozen=True):
    name: str


def record_from(kind: type[R], document: Any) -> R:
    """The record of which ``document`` is the JSON. Raises msgspec.ValidationError where it has other members or types."""
    found: dict[str, Any] = convert(document, dict[str, Any])
    for name in json_of(kind).listed:
        listed = found.get(name, [])
        names = convert(listed, tuple[_Named, ...])
        found[name] = {one.name: each for one, each in zip(names, listed, strict=True)}
    return convert(found, kind, strict=False)  # of a number that is not finite JSON has the text


class MadeLater(Sequence[T]):
    """Records that are made when they are looked at: of a hundred thousand tensors a call keeps the last one."""

    def __init__(self, items: Sequence[S], make: Callable[[S], T]) -> None:
        self._items: Sequence[Any] = items
        self._make: Callable[[Any], T] = make
        self._last: tuple[int, T] | None = None

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...

    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if isinstance(at, slice):
            return tuple(map(self._make, self._items[at]))
        last = self._last  # taken once: another thread may replace it
        if last is None or last[0] != at:
            last = self._last = (at, self._make(self._items[at]))
        return last[1]

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> tuple[type, tuple[tuple[T, ...]]]:
        """A pickle holds the records themselves: the function that makes them need not be one that pickles."""
        return tuple, (tuple(self),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@contextmanager
def making_many() -> Iterator[None]:
    """A pause of Python's search for cycles while many records are made, which have none.

    The search goes through all records again and again: half the time of opening and planning 100,000 tensors (measured).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
