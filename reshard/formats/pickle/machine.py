"""The machine that a pickle is a program for: a stack, marks in it, and a memo. Each opcode is a function that changes it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from reshard.errors import CorruptError, FormatError
from reshard.formats.limits import (
    FEW_PICKLE_VALUES,
    MAX_NAME_CHARACTERS,
    MAX_PICKLE_STACK,
    MAX_PICKLE_VALUES,
    MAX_VALUE_CHARACTERS,
    PICKLE_VALUE_BYTES,
)


class Machine:
    """The state of the interpreter.

    Args:
        data: the pickle.
        names, is_closed: as ``interpreter.read_pickle`` takes them.
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
