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
from reshard.formats.forms import FilesOf, FormatName
from reshard.formats.safetensors.files import ENDING
from reshard.formats.safetensors.write.file_names import check_pattern
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
        ocdbt, style, to, files, file_bytes, file_names, carry, overwrite, check: as in ConvertOptions.
    """

    max_memory: int
    workers: int
    layout: Layout | None = None
    changes: Changes = field(default_factory=Changes)
    encoding: Encoding | None = field(default_factory=lambda: Encoding(checksum=True))
    chunk_bytes: int = SPLIT_ABOVE_BYTES
    ocdbt: bool = False
    style: Style | None = None
    to: FormatName | None = None
    files: FilesOf | None = None
    file_bytes: int | None = None
    file_names: str | None = None
    carry: bool = False
    overwrite: bool = False
    check: Check = "written"

    @property
    def is_one_file(self) -> bool:
        """Whether the target is a single file, not a folder."""
        return self.files == "one"

    def __post_init__(self) -> None:
        """Raises PlanError for whatever makes no sense by itself."""
        check_limits(self.max_memory, self.workers)
        check_positive("chunk_bytes", self.chunk_bytes, "bytes, such as 256MiB")
        check_choice("style", self.style, (None, *get_args(Style)))
        check_choice("to", self.to, (None, *get_args(FormatName)))
        check_choice("files", self.files, (None, *get_args(FilesOf)))
        if self.file_bytes is not None:
            check_positive("file_bytes", self.file_bytes, "bytes, such as 5GB")
        if self.file_names is not None:
            check_pattern(self.file_names)
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
    path = path_of("target", asked.target)
    to, files = _named_form(path, asked)
    options = CheckedOptions(
        max_memory=limits.max_memory,
        workers=limits.workers,
        layout=layout,
        changes=layout.changes + changes if isinstance(layout, LayoutFile) else changes,
        encoding=parse_compression(asked.compression),
        chunk_bytes=SPLIT_ABOVE_BYTES if chunk_bytes is None else chunk_bytes,
        ocdbt=asked.ocdbt,
        style=asked.style,
        to=to,
        files=files,
        file_bytes=bytes_of("file_bytes", asked.file_bytes),
        file_names=asked.file_names,
        carry=asked.carry,
        overwrite=asked.overwrite,
        check=asked.check,
    )
    return CheckedTarget(path, options, asked.restart)


def _named_form(path: str, asked: Target) -> tuple[FormatName | None, FilesOf | None]:
    """The format and the files that are asked for, or that the target's name says."""
    if not path.endswith(ENDING) or asked.to == "orbax":
        return asked.to, asked.files
    if asked.files not in (None, "one"):
        raise PlanError(
            f"files is {asked.files!r}, which makes a folder, but the target {path!r} has the name of a file; name a "
            f"folder, or leave files out for one file"
        )
    return "safetensors", "one"


def check_targets(asked: Sequence[Target], limits: Limits) -> list[CheckedTarget]:
    """Several targets, each as ``check_target`` has it; PlanError unless there is at least one."""
    listed = list(asked) if isinstance(asked, Iterable) else []
    if not listed or not all(isinstance(one, Target) for one in listed):
        raise PlanError(f"targets is {asked!r}; expected a list of at least one reshard.Target")
    return [check_target(one, limits) for one in listed]
