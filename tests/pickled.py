"""Writes pickles by hand, of objects whose classes need not exist."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple


class Global(NamedTuple):
    """A class or a function by its name."""

    module: str
    name: str


class Call(NamedTuple):
    """What a function returns."""

    function: Global
    arguments: tuple[Any, ...]


class New(NamedTuple):
    """An object of a class, with its state, if it is not None."""

    of: Global
    state: Any = None


class Reference(NamedTuple):
    """A reference to what is outside of the pickle."""

    to: Any


class Ordered(NamedTuple):
    """A ``collections.OrderedDict``."""

    items: dict[Any, Any]


def pickled(value: Any) -> bytes:
    """The pickle of a value, in protocol 2, without a memo."""
    return b"\x80\x02" + _code(value) + b"."


def _code(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(text)) + text
    return _made(value)


def _made(value: Any) -> bytes:
    if isinstance(value, Global):
        return b"c" + f"{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return _code(value.function) + _code(value.arguments) + b"R"
    if isinstance(value, New):
        state = b"" if value.state is None else _code(value.state) + b"b"
        return _code(value.of) + b")\x81" + state
    if isinstance(value, Reference):
        return _code(value.to) + b"Q"
    if isinstance(value, Ordered):
        made = _code(Call(Global("collections", "OrderedDict"), ()))
        return made + b"(" + _items(value.items) + b"u"
    return _container(value)


def _container(value: Any) -> bytes:
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_code, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_code, value)) + b"e"
    assert isinstance(value, dict), value
    return b"}(" + _items(value) + b"u"


def _items(items: dict[Any, Any]) -> bytes:
    return b"".join(_code(key) + _code(child) for key, child in items.items())


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data
