"""The records that the interpreter of pickles makes in place of Python objects; they do nothing.

Numbers, text, bytes, None, tuples and lists are themselves. A dict is a ``Table``, which looks nothing up, so that no key is ever
hashed. A class or a function is a ``Name``; an object that a pickle would build, or a call, is a ``Built``.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct

from reshard.errors import CorruptError, shorten

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
