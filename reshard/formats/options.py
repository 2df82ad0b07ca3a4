"""FormatOption: an option that targets of one format have; a format lists its own by name.

``conversion/options.py`` declares and documents the options of all formats, because the command line and the HTTP API
take them from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from reshard.arguments import bytes_of, check_choice, check_positive


class FormatOption(Struct, frozen=True):
    """How the value of an option is checked and shown.

    Attributes:
        parse: the value that the format's form takes; PlanError for one that makes no sense with any checkpoint.
        show: a parsed value as text. Two conversions are the same only if the text is.
        in_bucket: takes the place of the default for a target in a bucket, by the bytes of memory that are allowed.
    """

    parse: Callable[[Any], Any]
    show: Callable[[Any], str] = str
    in_bucket: Callable[[int], Any] | None = None


def choice(name: str, choices: tuple[Any, ...]) -> FormatOption:
    """An option that is one of several values, or None."""

    def parse(value: Any) -> Any:
        check_choice(name, value, (None, *choices))
        return value

    return FormatOption(parse)


def size(
    name: str,
    example: str,
    default: int | None = None,
    show: Callable[[Any], str] = str,
    in_bucket: Callable[[int], int] | None = None,
) -> FormatOption:
    """An option in bytes, or text such as ``"64MiB"``; None stands for the default."""

    def parse(value: Any) -> int | None:
        if value is None:
            return default
        nbytes = bytes_of(name, value)
        check_positive(name, nbytes, f"bytes, such as {example}")
        return nbytes

    return FormatOption(parse, show, in_bucket)


def flag() -> FormatOption:
    """An option that is asked for, or not."""
    return FormatOption(lambda value: value)
