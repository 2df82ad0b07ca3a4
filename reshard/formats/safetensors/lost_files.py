"""Warns where a file of torch's distributed checkpoint may be lost, and nothing in the others proves that it is not.

torch names the files ``shard-RANK-model-I-of-N.safetensors`` and records where each piece begins. A rank that has nothing to
write writes no file. So a lost last rank shows only where ``global_shape`` is recorded, or this project's own record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from reshard.formats.safetensors.header import FileHeader
from reshard.formats.safetensors.read_record import entry_of
from reshard.formats.safetensors.slices import DCP_SLICES, CutTensor
from reshard.formats.slices.slice_file import SliceFile

_SHARD = re.compile(r"shard-([0-9]{1,9})-.*", re.DOTALL)


def lost_file_warnings(
    headers: Sequence[FileHeader], cuts: Sequence[CutTensor], record: SliceFile
) -> Iterator[str]:
    """One sentence for tensors that may go on, and one for numbers that no file has."""
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
