"""The wire format of protocol buffers: a message as its fields, by number.

A field begins with a varint: its number times eight, plus the form of its value: 0 a varint, 1 eight bytes, 2 a length and so many
bytes, 5 four bytes. (https://protobuf.dev/programming-guides/encoding)
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_MOST_VARINT_BYTES = 10

Value = int | bytes


class WireError(ValueError):
    """A message that is damaged; the text says how."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message in order, each with its number: bytes where it has a length, else a whole number of at least 0.

    Raises WireError where the message is no such thing.
    """
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        value: Value
        if kind == VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            nbytes, at = varint(message, at)
        elif kind in (FIXED32, FIXED64):
            nbytes = 4 if kind == FIXED32 else 8
        else:
            raise WireError(f"a field is stored in the unknown way {kind}")
        if nbytes > len(message) - at:
            raise WireError("a field goes beyond its end")
        value = message[at : at + nbytes]
        yield number, value if kind == BYTES else int.from_bytes(value, "little")
        at += nbytes


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number that begins at an offset, seven bits a byte and the lowest first, and the offset behind it."""
    if (
        at < len(data) and data[at] < 0x80
    ):  # most are below 128, and an index of a million tensors has ten million
        return data[at], at + 1
    value = 0
    for place in range(min(_MOST_VARINT_BYTES, len(data) - at)):
        octet = data[at + place]
        value |= (octet & 0x7F) << (7 * place)
        if octet < 0x80:
            if value >> 64:
                break
            return value, at + place + 1
    raise WireError("a number does not end, or has more than 64 bits")


def signed(value: Value) -> int:
    """A varint as an int64."""
    number = whole(value)
    return number - (1 << 64) if number >> 63 else number


def whole(value: Value) -> int:
    """The value of a field that must be a number."""
    if not isinstance(value, int):
        raise WireError("bytes stand where a number is expected")
    return value


def message(value: Value) -> bytes:
    """The value of a field that must have a length."""
    if not isinstance(value, bytes):
        raise WireError("a number stands where bytes are expected")
    return value


def varint_bytes(number: int) -> bytes:
    """A number of at least 0 as a varint; a negative one as the int64 that it is."""
    number &= (1 << 64) - 1
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def number_field(number: int, value: int) -> bytes:
    """A field with a varint; nothing for 0, the meaning of a missing field."""
    return varint_bytes(number << 3 | VARINT) + varint_bytes(value) if value else b""


def fixed32_field(number: int, value: int) -> bytes:
    """A field with four bytes."""
    return varint_bytes(number << 3 | FIXED32) + value.to_bytes(4, "little")


def bytes_field(number: int, value: bytes) -> bytes:
    """A field with a length: bytes, text, or a message."""
    return varint_bytes(number << 3 | BYTES) + varint_bytes(len(value)) + value
