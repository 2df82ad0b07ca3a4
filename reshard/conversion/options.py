"""ConvertOptions: how to convert, checked once and passed around whole."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct, field

from reshard.arguments import check_choice, check_positive
from reshard.engine.limits import check_limits
from reshard.formats.base import Encoding, Style
from reshard.layout.changes import Changes
from reshard.planning.chunking import SPLIT_ABOVE_BYTES
from reshard.planning.target_layouts import Layout

Check = Literal["written", "readback"]


class ConvertOptions(Struct, frozen=True):
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
        check_choice("check", self.check, get_args(Check))


class CheckedTarget(Struct, frozen=True):
    """One target of a conversion, and how it is to be made.

    Attributes:
        restart: start over, whatever an unfinished run to this target has left.
    """

    target: str
    options: ConvertOptions
    restart: bool = False
