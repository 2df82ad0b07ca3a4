"""The record of a checkpoint that is opened: its use, and the check that it describes the stored tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from reshard.errors import CorruptError, FormatError, LayoutError
from reshard.formats.base import RecordUse
from reshard.formats.slices.slice_file import NOTHING, SliceEntry, SliceFile


def recorded(read: Callable[[], SliceFile | None], record: RecordUse) -> SliceFile:
    """The record that ``read`` finds; empty if it is absent, ignored, or damaged and not to be checked."""
    if record == "ignored":
        return NOTHING
    try:
        return read() or NOTHING
    except FormatError:
        if record == "checked":
            raise
        return NOTHING


def described_entry(
    known: SliceFile, name: str, dtype: str, shape: tuple[int, ...]
) -> SliceEntry | None:
    """The entry of a tensor, if it describes the one that is stored."""
    entry = known.tensors.get(name)
    fits = entry is not None and (entry.dtype, tuple(entry.shape)) == (dtype, shape)
    return entry if fits else None


def check_described(
    record: SliceFile,
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
    path: str,
    unlisted: Collection[str] = (),
) -> None:
    """Raises CorruptError where the record does not describe the tensors of the checkpoint at ``path``.

    Args:
        stored: dtype and shape of each tensor.
        unlisted: names of tensors that may be stored without being recorded.
    """
    remedy = "; restore it from a copy, or remove the record if the files were changed on purpose"
    for name, entry in record.tensors.items():
        if name not in stored:
            raise CorruptError(f"{path}: {name!r} is recorded, but no file holds it{remedy}")
        dtype, shape = stored[name]
        if (entry.dtype, tuple(entry.shape)) != (dtype, shape):
            raise CorruptError(
                f"{path}: {name!r} is recorded as {entry.dtype} of shape {list(entry.shape)}, but stored is {dtype} of "
                f"shape {list(shape)}{remedy}"
            )
        _check_layout(entry, path)
    unknown = next((n for n in stored if n not in record.tensors and n not in unlisted), None)
    if unknown is not None:
        raise CorruptError(f"{path}: {unknown!r} is stored, but not recorded{remedy}")


def _check_layout(entry: SliceEntry, path: str) -> None:
    try:
        if entry.layout is not None:
            entry.layout.grid(entry.shape, entry.name)
    except LayoutError as error:
        raise CorruptError(
            f"{path}: the layout recorded for {entry.name!r} contradicts its shape: {error}"
        ) from error
