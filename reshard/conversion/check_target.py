"""Checks a Target and parses its options, once, before anything is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from msgspec import Struct, field

from reshard.arguments import bytes_of, changes_of, check_choice, check_positive, path_of
from reshard.conversion.options import Check, Target
from reshard.engine.limits import Limits, check_limits
from reshard.errors import PlanError
from reshard.formats.base import Encoding, Style
from reshard.formats.compression import parse_compression
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.planning.chunking import SPLIT_ABOVE_BYTES
from reshard.planning.target_layouts import Layout, layout_of


class CheckedOptions(Struct, frozen=True):
    """The options of a target and the limits of its run, parsed.

    Attributes:
        layout: where every element belongs; None keeps the source's layouts.
        changes: the rules of the layout file, then those of the target.
        encoding: of the target's chunks; None keeps each tensor's own.
        ocdbt, style, overwrite, check: as in ConvertOptions.
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
        target: its path.
        restart: as in ConvertOptions.
    """

    target: str
    options: CheckedOptions
    restart: bool = False


def check_target(asked: Target, limits: Limits) -> CheckedTarget:
    """A target with its options parsed. The rules of a layout file come before those of the target.

    Raises PlanError or LayoutError for options that make no sense with any checkpoint, StorageError for
    a target that is no path.
    """
    changes = changes_of(asked.select, asked.drop, asked.rename, asked.cast)
    layout = layout_of(asked.layout, asked.mesh, asked.missing_axes)
    chunk_bytes = bytes_of("chunk_bytes", asked.chunk_bytes)
    options = CheckedOptions(
        max_memory=limits.max_memory,
        workers=limits.workers,
        layout=layout,
        changes=layout.changes + changes if isinstance(layout, LayoutFile) else changes,
        encoding=parse_compression(asked.compression),
        chunk_bytes=SPLIT_ABOVE_BYTES if chunk_bytes is None else chunk_bytes,
        ocdbt=asked.ocdbt,
        style=asked.style,
        overwrite=asked.overwrite,
        check=asked.check,
    )
    return CheckedTarget(path_of("target", asked.target), options, asked.restart)


def check_targets(asked: Sequence[Target], limits: Limits) -> list[CheckedTarget]:
    """Several targets, each as ``check_target`` has it; PlanError unless there is at least one."""
    listed = list(asked) if isinstance(asked, Iterable) else []
    if not listed or not all(isinstance(one, Target) for one in listed):
        raise PlanError(f"targets is {asked!r}; expected a list of at least one reshard.Target")
    return [check_target(one, limits) for one in listed]
