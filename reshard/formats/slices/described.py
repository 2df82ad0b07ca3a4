"""Whether a record describes the tensors that are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from reshard.errors import CorruptError, LayoutError
from reshard.formats.slices.slice_file import SliceEntry, SliceFile


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
