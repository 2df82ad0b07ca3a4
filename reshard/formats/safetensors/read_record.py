"""The record that this project made of a safetensors checkpoint: slices.json in a folder, text in a file's header."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from reshard.errors import CorruptError
from reshard.formats.base import Record
from reshard.formats.safetensors.files import Files
from reshard.formats.safetensors.header import FileHeader
from reshard.formats.safetensors.record import HEADER_DIGEST, RECORD
from reshard.formats.safetensors.slices import DCP_SLICES, CutTensor
from reshard.formats.slices.described import check_described, described_entry, recorded
from reshard.formats.slices.file_digests import check_digest
from reshard.formats.slices.parse import parse_slices, read_slices
from reshard.formats.slices.slice_file import NOTHING, SliceEntry, SliceFile

_SHARD = re.compile(r"shard-([0-9]{1,9})-.*", re.DOTALL)


def read_record(files: Files, headers: Sequence[FileHeader], record: Record) -> SliceFile:
    """What was recorded of a checkpoint; an empty record where there is none, or none is wanted.

    Raises CorruptError for a record that is damaged, and for an index that is not the recorded one, where they are
    to be checked; and for a header of a conversion without its digest.
    """
    known = recorded(lambda: _with_index(files, headers, record), record)
    if known.conversion:
        _check_digests_there(headers)
    return known


def _with_index(files: Files, headers: Sequence[FileHeader], record: Record) -> SliceFile | None:
    known = _found(files, headers)
    if known is not None and files.index and record == "checked":
        index = files.index
        digest = known.files.get(index.file.name, index.digest)
        check_digest(index.digest, digest, f"the index {index.file}")
    return known


def _check_digests_there(headers: Sequence[FileHeader]) -> None:
    """Every header of a conversion records its digest; without it, damage to the header would go unnoticed."""
    for header in headers:
        if HEADER_DIGEST not in header.metadata:
            raise CorruptError(
                f"the header of {header.path} records no digest of itself ({HEADER_DIGEST!r}), but reshard wrote one; restore "
                "the file from a copy, or remove the record if the files were changed on purpose"
            )


def _found(files: Files, headers: Sequence[FileHeader]) -> SliceFile | None:
    found = read_slices(files.folder) if files.folder is not None else None
    if found is not None or len(headers) != 1:
        return found
    (header,) = headers
    text = header.metadata.get(RECORD)
    return None if text is None else parse_slices(text.encode(), header.path)


def check_record(
    record: SliceFile, cuts: Sequence[CutTensor], path: str, unlisted: Collection[str] = ()
) -> None:
    """Raises CorruptError where the record does not describe the tensors of the checkpoint at ``path``.

    ``unlisted``: names of tensors that no index lists, and that were recorded only if they were taken then too.
    """
    if record is not NOTHING:
        stored = {cut.name: (cut.dtype, cut.chunks.grid.shape) for cut in cuts}
        check_described(record, stored, path, unlisted)


def entry_of(cut: CutTensor, record: SliceFile) -> SliceEntry | None:
    """The recorded entry of a tensor, if it describes the tensor."""
    return described_entry(record, cut.name, cut.dtype, cut.chunks.grid.shape)


def lost_file_warnings(
    headers: Sequence[FileHeader], cuts: Sequence[CutTensor], record: SliceFile
) -> Iterator[str]:
    """Where a file of torch's distributed checkpoint may be lost, and nothing in the others proves that it is not.

    torch names the files ``shard-RANK-model-I-of-N.safetensors`` and records where each piece begins. A rank that has nothing to
    write writes no file. So a lost last rank shows only where ``global_shape`` is recorded, or this project's own record.

    One sentence for tensors that may go on, and one for numbers that no file has.
    """
    files = [header.path.rpartition("/")[2] for header in headers if DCP_SLICES in header.metadata]
    if not files or record.tensors:
        return
    open_ended = [cut.name for cut in cuts if cut.may_go_on and entry_of(cut, record) is None]
    if open_ended:
        more = f" and {len(open_ended) - 1:,} more tensors" if open_ended[1:] else ""
        yield (
            f"{open_ended[0]!r}{more}: torch recorded where the parts begin, but no full shape, so that the last parts cannot be "
            f"proved to be there; compare the shapes with the model's, in case a file behind {max(files)} is lost"
        )
    yield from _gaps(files)


def _gaps(files: Sequence[str]) -> Iterator[str]:
    numbers = {int(match[1]) for name in files if (match := _SHARD.fullmatch(name)) is not None}
    missing = next((n for n in range(1, max(numbers, default=0)) if n not in numbers), None)
    if missing is not None:
        yield (
            f"no file is named shard-{missing:05d}-…, though files with higher numbers are there: rank {missing - 1} had nothing to "
            "write, or its file is lost"
        )
