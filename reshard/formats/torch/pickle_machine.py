"""The machine that a pickle is a program for: a stack, marks in it, and a memo. Each opcode is a function that changes it.

The records that the interpreter of pickles makes in place of Python objects; they do nothing.

Numbers, text, bytes, None, tuples and lists are themselves. A dict is a ``Table``, which looks nothing up, so that no key is ever
hashed. A class or a function is a ``Name``; an object that a pickle would build, or a call, is a ``Built``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.limits import (
    FEW_PICKLE_VALUES,
    MAX_NAME_CHARACTERS,
    MAX_PICKLE_STACK,
    MAX_PICKLE_VALUES,
    MAX_VALUE_CHARACTERS,
    PICKLE_VALUE_BYTES,
)

T = TypeVar("T")


ANONYMOUS = "what a call returned"
"""The name of an object that something without a name would make."""

SET, FROZENSET = "set", "frozenset"


class Name(Struct, frozen=True):
    """A class or a function that a pickle names; ``text`` is its entry in the list of known names, else module and name."""

    text: str


class Persistent(Struct, frozen=True):
    """A reference to an object outside of the pickle, such as a storage of torch."""

    reference: Any

    def __repr__(self) -> str:  # its target may be deep
        return "Persistent(…)"


class Table:
    """A dict: its keys and values in turn, as they were set. Equal keys are not joined."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def __repr__(self) -> str:
        return f"Table of {len(self.entries) // 2}"

    def pairs(self) -> list[tuple[Any, Any]]:
        """Each key with its value."""
        return list(zip(self.entries[::2], self.entries[1::2], strict=True))


class Built:
    """An object that a pickle would make.

    Attributes:
        name: of its class, or of the function that would be called.
        arguments: with which it would be.
        state: given by BUILD; None before.
        table: its items, where it is a kind of dict.
        items: its elements, where it is a kind of list, or a set.
    """

    __slots__ = ("arguments", "items", "name", "state", "table")

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None
        self.table: Table | None = None
        self.items: list[Any] | None = None

    def __repr__(self) -> str:
        return f"{self.name}(…)"


def expect_built(value: Any, name: str, what: str, where: str) -> Built:
    """``value`` itself, if it is made from ``name``; else a CorruptError that names ``what`` and ``where``."""
    if isinstance(value, Built) and value.name == name:
        return value
    raise CorruptError(f"{where}: {what} should be a {name}, but is {shorten(value)}")


def expect_node(value: Any, kind: type[T], what: str, where: str) -> T:
    """``value`` itself, if it is exactly a ``kind``; else a CorruptError that names ``what`` and ``where``."""
    if type(value) is kind:
        return value
    expected = "dict" if kind is Table else kind.__name__
    raise CorruptError(f"{where}: {what} should be a {expected}, but is {shorten(value)}")


def fields_of(made: Built, where: str) -> dict[str, Any]:
    """The attributes of an object whose state is a dict. Raises CorruptError for any other."""
    state = expect_node(made.state, Table, f"the state of a {made.name}", where)
    found: dict[str, Any] = {}
    for key, value in state.pairs():
        found[expect_node(key, str, f"a name in the state of a {made.name}", where)] = value
    return found


class Machine:
    """The state of the interpreter.

    Args:
        data: the pickle.
        names, is_closed: as ``read_pickle`` takes them.
        where: the file, for messages.
    """

    __slots__ = (
        "at",
        "data",
        "is_closed",
        "marks",
        "memo",
        "most_values",
        "names",
        "stack",
        "values_left",
        "where",
    )

    def __init__(
        self, data: bytes, names: Mapping[str, str], where: str, *, is_closed: bool
    ) -> None:
        self.data, self.names, self.where, self.is_closed = data, names, where, is_closed
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        by_size = max(FEW_PICKLE_VALUES, len(data) // PICKLE_VALUE_BYTES)
        self.most_values = self.values_left = min(MAX_PICKLE_VALUES, by_size)

    def result(self) -> Any:
        if len(self.stack) != 1 or self.marks or self.at != len(self.data):
            raise self.damaged("does not end where its one value is complete")
        return self.stack[0]

    def push(self, value: Any) -> None:
        """Adds a new value."""
        self.values_left -= 1
        if self.values_left < 0:
            raise self.too_large(f"{self.most_values:,} values")
        self.stack.append(value)

    def push_known(self, value: Any) -> None:
        """Adds a value that is there already, so that it takes no memory."""
        if len(self.stack) >= MAX_PICKLE_STACK:
            raise self.too_large(f"{MAX_PICKLE_STACK:,} values on its stack")
        self.stack.append(value)

    def pop(self) -> Any:
        if self.marks and self.marks[-1] >= len(self.stack):
            raise self.damaged("takes more from its stack than is there")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """Takes the values that were pushed since the last MARK."""
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def take(self, nbytes: int) -> bytes:
        start = self.at
        self.at = start + nbytes
        if self.at > len(self.data):
            raise self.damaged("is cut short")
        return self.data[start : self.at]

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def text(self, nbytes: int) -> str:
        if nbytes > MAX_VALUE_CHARACTERS:
            raise self.too_large(f"{MAX_VALUE_CHARACTERS:,} bytes in one text")
        try:
            return self.take(nbytes).decode("utf-8", "surrogatepass")  # as Python's pickle
        except UnicodeDecodeError:
            raise self.damaged("holds text that is not UTF-8") from None

    def line(self) -> str:
        """Text up to the end of a line."""
        end = self.data.find(b"\n", self.at, self.at + MAX_NAME_CHARACTERS)
        if end < 0:
            raise self.damaged("holds a name without an end")
        found = self.text(end - self.at)
        self.at = end + 1
        return found

    def damaged(self, what: str) -> CorruptError:
        return CorruptError(
            f"{self.where} {what} (at byte {self.at:,} of {len(self.data):,}); expected a pickle as torch writes it, so restore it "
            "from a copy"
        )

    def too_large(self, most: str) -> FormatError:
        return FormatError(
            f"{self.where} has more than {most}, the most that is read of a pickle; this checkpoint cannot be handled safely"
        )
