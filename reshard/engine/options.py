"""Options: how a conversion is to be done, checked once and then passed around whole."""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import Struct, field

from reshard.engine.layouts import Layout
from reshard.errors import PlanError
from reshard.formats.base import Encoding, Style
from reshard.layout.changes import Changes
from reshard.planning.chunking import SPLIT_ABOVE_BYTES

Check = Literal["written", "readback"]

_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10)}
_DEFAULT_LEVEL = {"zstd": 1, "gzip": 6}


class Options(Struct, frozen=True):
    """How to convert.

    Attributes:
        layout: where every element belongs; None keeps the source's layouts.
        encoding: of the target's chunks; None keeps each tensor's own.
        chunk_bytes: chunks above this are subdivided.
        ocdbt: pack the chunks into one OCDBT database instead of plain files.
        style: form of the target's container; None keeps the source's.
        check: "readback" reads the output again before it is published.
    """

    max_memory: int
    workers: int
    layout: Layout | None = None
    changes: Changes = field(default_factory=Changes)
    encoding: Encoding | None = field(default_factory=lambda: Encoding(checksum=True))
    chunk_bytes: int = SPLIT_ABOVE_BYTES
    ocdbt: bool = False
    style: Style | None = None
    overwrite: bool = False
    check: Check = "written"

    def __post_init__(self) -> None:
        """Raises PlanError for whatever makes no sense by itself."""
        check_limits(self.max_memory, self.workers)
        check_positive("chunk_bytes", self.chunk_bytes, "bytes, such as 256MiB")
        check_choice("style", self.style, (None, *get_args(Style)))
        check_choice("verify", self.check, get_args(Check))


class Wanted(Struct, frozen=True):
    """One target of a conversion, and how it is to be made.

    Attributes:
        restart: start over, whatever an unfinished run to this target has left.
    """

    target: str
    options: Options
    restart: bool = False


def check_limits(max_memory: int, workers: int) -> None:
    """Raises PlanError unless both are whole numbers of at least 1."""
    check_positive("max_memory", max_memory, "bytes, such as 512MiB")
    check_positive("workers", workers, "tasks at once, such as 2")


def check_positive(name: str, value: Any, what: str) -> None:
    """Raises PlanError unless ``value`` is a whole number of at least 1; ``what`` says of what."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(
            f"{name} is {value!r}; expected a whole number of at least 1 ({what}), or leave it out "
            "for the default"
        )


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises PlanError unless ``value`` is one of the choices."""
    if value not in choices:
        raise PlanError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def parse_compression(text: str) -> Encoding | None:
    """``none``, ``zstd[:level]``, ``gzip[:level]``, ``blosc`` or ``keep`` (None) as an Encoding.

    >>> parse_compression("zstd:3").level
    3
    """
    name, _, level = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text == "keep":
        return None
    if text == "none":
        return Encoding(checksum=True)
    if text == "blosc":
        return Encoding(
            "blosc", 1, checksum=True, spec='{"cname": "lz4", "shuffle": 1, "blocksize": 0}'
        )
    if name in _LEVELS:
        number = _level(text, level) if level else _DEFAULT_LEVEL[name]
        if number in _LEVELS[name]:
            return Encoding(name, number, checksum=True)  # type: ignore[arg-type] # a key of _LEVELS
    raise PlanError(
        f"compression {text!r} is not known; expected none, zstd[:level up to 22], gzip[:0-9], blosc or keep"
    )


def _level(text: str, level: str) -> int:
    try:
        return int(level)
    except ValueError:
        raise PlanError(f"compression {text!r}: the level must be a whole number") from None
