"""Writes pickles in protocol 2, of objects whose classes need not be there.

Protocol 2 is the newest that torch's own restricted unpickler reads (``torch/_weights_only_unpickler.py``). A name or a text that was
written once is taken from the memo after that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

_HEAD, _STOP = b"\x80\x02", b"."
_BATCH = 1000
"""Items of a container that are added at once, as Python's own pickles have them."""

_LEAST_INT32, _MOST_INT32 = -(1 << 31), (1 << 31) - 1


class Global(Struct, frozen=True):
    """A class or a function by its name."""

    module: str
    name: str


class Call(Struct, frozen=True):
    """The result of a function call."""

    function: Global
    arguments: tuple[Any, ...] = ()


class New(Struct, frozen=True):
    """An object of a class; ``state`` is given to it unless it is None."""

    of: Global
    state: Any = None


class Reference(Struct, frozen=True):
    """A reference to an object outside of the pickle."""

    to: tuple[Any, ...]


class Pairs(Struct, frozen=True):
    """A dict by its keys and values, which need no hash and may be made one by one."""

    pairs: Iterable[tuple[Any, Any]]


def encode_pickle(value: Any) -> bytes:
    """The pickle of a record of this module, of a plain value, or of tuples, lists and dicts of them.

    TypeError for any other value.
    """
    encoder = _Encoder()
    encoder.add(value)
    return _HEAD + bytes(encoder.code) + _STOP


class _Encoder:
    """The code of a pickle that is being made."""

    def __init__(self) -> None:
        self.code = bytearray()
        self._memo: dict[str | Global, int] = {}

    def add(self, value: Any) -> None:
        if value is None or value is True or value is False:
            self.code += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, str | Global):
            self._remembered(value)
        elif type(value) is int:
            self.code += _integer(value)
        elif type(value) is float:
            self.code += b"G" + struct.pack(">d", value)
        elif type(value) is complex:
            self.add(Call(Global("__builtin__", "complex"), (value.real, value.imag)))
        elif isinstance(value, tuple | list | dict | Pairs):
            self._container(value)
        else:
            self._object(value)

    def _remembered(self, value: str | Global) -> None:
        number = self._memo.get(value)
        if number is not None:
            self.code += _numbered(b"h", b"j", number)
            return
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
            self.code += b"X" + struct.pack("<I", len(data)) + data
        else:
            self.code += f"c{value.module}\n{value.name}\n".encode()
        number = self._memo[value] = len(self._memo)
        self.code += _numbered(b"q", b"r", number)

    def _container(self, value: Any) -> None:
        if isinstance(value, tuple):
            if not value:
                self.code += b")"
                return
            self.code += b"("
            self._all(value)
            self.code += b"t"
        elif isinstance(value, list):
            self.code += b"]"
            self._batches(((item,) for item in value), b"e")
        else:
            pairs = value.items() if isinstance(value, dict) else value.pairs
            self.code += b"}"
            self._batches(pairs, b"u")

    def _batches(self, items: Iterable[tuple[Any, ...]], opcode: bytes) -> None:
        """The items of a container, a batch at a time, so that no reader needs a large stack."""
        remaining = iter(items)
        while batch := list(islice(remaining, _BATCH)):
            self.code += b"("
            for item in batch:
                self._all(item)
            self.code += opcode

    def _object(self, value: Any) -> None:
        if isinstance(value, Call):
            self._all((value.function, value.arguments))
            self.code += b"R"
        elif isinstance(value, New):
            self._all((value.of, ()))
            self.code += b"\x81"
            if value.state is not None:
                self.add(value.state)
                self.code += b"b"
        elif isinstance(value, Reference):
            self.add(value.to)
            self.code += b"Q"
        else:
            raise TypeError(f"no value of a pickle that is written: {type(value)}")

    def _all(self, values: Sequence[Any]) -> None:
        for value in values:
            self.add(value)


def _numbered(short: bytes, long: bytes, number: int) -> bytes:
    return short + bytes([number]) if number < 256 else long + struct.pack("<I", number)


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if _LEAST_INT32 <= value <= _MOST_INT32:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data
