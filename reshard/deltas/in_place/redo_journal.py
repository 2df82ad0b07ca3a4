"""The journal of a change in place: frames of every tensor that changes, then a table of them, which is written last.

::

    frames of all tensors, in any order
    JSON of the plan: what the folder becomes, and where the frames of each tensor are
    u64 offset of that JSON, u64 its length, u32 its CRC-32, the eight bytes "reshredo"; little-endian

It lies in a folder that may come from anywhere, so that all of it is checked before a file is written.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import closing

import msgspec
from msgspec import Struct

from reshard.deltas.in_place.redo_frames import BadFrameError, RedoFrame, frames_in
from reshard.errors import CorruptError, MemoryBudgetError
from reshard.formats.delta.checksums import HEX_DIGITS, Checksum
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.safetensors.model_name import is_index, is_weights
from reshard.formats.slices.slice_file import FILE_NAME
from reshard.storage.base import OpenFile
from reshard.storage.local.spool import Spool, Spooled
from reshard.storage.location import Location

_TAIL = struct.Struct("<QQI8s")
_MAGIC = b"reshredo"
_READ_BYTES = MIB = 1 << 20

_DECODED = 4
"""Memory of a table, in bytes of its JSON, an overestimate; so much again is left for what is done with it."""


class RedoTensor(Struct, frozen=True):
    """A tensor that changes.

    Attributes:
        file, offset, nbytes: where its bytes are.
        checksum, digest: of its new bytes.
        changed: how many bytes differ.
        parts: offset and length of its frames in the journal.
    """

    name: str
    file: str
    offset: int
    nbytes: int
    checksum: Checksum
    digest: str
    changed: int
    parts: tuple[tuple[int, int], ...]


class RedoPlan(Struct, frozen=True):
    """What a folder becomes.

    Attributes:
        version, before: the number that it gets, and the one that it had; None where none was recorded.
        files: the index, if there is one, and the files of weights; all of them are out of sight meanwhile.
        records: what is removed, since it does not fit the new version.
        written: files that are written anew, the index last.
        tensors: those that change.
        all_tensors: how many there are.
        warnings: what a person should know of the deltas.
    """

    version: str
    before: str | None
    files: tuple[str, ...]
    records: tuple[str, ...]
    written: dict[str, str]
    tensors: tuple[RedoTensor, ...]
    all_tensors: int
    warnings: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[str, ...]:
        """The files that come back."""
        return tuple(name for name in self.files if not is_index(name))


def write_plan(spool: Spool, plan: RedoPlan, max_memory: int) -> None:
    """Ends a journal. Raises MemoryBudgetError where it could not be read again."""
    data = msgspec.json.encode(plan)
    _check_memory(len(data), max_memory)
    table = Spooled([])
    spool.append(table, data)
    ((offset, length),) = table.parts
    spool.append(table, _TAIL.pack(offset, length, zlib.crc32(data), _MAGIC))


class Journal:
    """An open journal that is whole.

    Attributes:
        plan: what the folder becomes.

    Raises CorruptError where it is damaged, or cannot be one; MemoryBudgetError where its table does not fit.
    """

    def __init__(self, place: Location, max_memory: int) -> None:
        self._place = place
        found = place.status("the journal")
        size = 0 if found is None else found.nbytes
        self._file: OpenFile = place.open(what="the journal")
        try:
            self.plan = self._read_plan(size, max_memory)
        except BaseException:
            self.close()
            raise

    def frames(self, tensor: RedoTensor) -> Iterator[RedoFrame]:
        """What changes in a tensor, block by block."""
        try:
            yield from frames_in(self._pieces(tensor), tensor.nbytes)
        except BadFrameError as error:
            raise self._damaged(f"{tensor.name[:200]!r} has {error}") from error

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()

    def _pieces(self, tensor: RedoTensor) -> Iterator[bytes]:
        for start, length in tensor.parts:
            for at in range(start, start + length, _READ_BYTES):
                yield self._file.read(at, min(_READ_BYTES, start + length - at))

    def _read_plan(self, size: int, max_memory: int) -> RedoPlan:
        if size < _TAIL.size:
            raise self._damaged(f"it has {size} bytes")
        tail = self._file.read(size - _TAIL.size, _TAIL.size)
        if len(tail) < _TAIL.size:
            raise self._damaged("it ends early")
        offset, length, crc, magic = _TAIL.unpack(tail)
        if magic != _MAGIC or offset + length + _TAIL.size != size:
            raise self._damaged("it does not end as a journal does")
        _check_memory(length, max_memory)
        data = self._file.read(offset, length)
        if zlib.crc32(data) != crc:
            raise self._damaged("the CRC-32 of its table is another one")
        try:
            plan = msgspec.json.decode(data, type=RedoPlan)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._damaged(f"its table is not one: {error}") from error
        if problem := next(_problems(plan, offset), ""):
            raise self._damaged(problem)
        return plan

    def _damaged(self, what: str) -> CorruptError:
        return CorruptError(
            f"{self._place}: the journal of a change in place is damaged: {what[:300]}; the files in {self._place.parent} may be partly changed: "
            "restore the folder from the version before without its .reshard-in-place, and apply the deltas again"
        )


def open_journal(place: Location, max_memory: int) -> closing[Journal]:
    """A journal, for a block."""
    return closing(Journal(place, max_memory))


def _check_memory(table_bytes: int, max_memory: int) -> None:
    need = 2 * _DECODED * table_bytes
    if need > max_memory:
        mib = -(-need // MIB)
        raise MemoryBudgetError(
            f"to change these tensors in place takes {mib} MiB for the table of the journal, but {max_memory / MIB:.4g} MiB are allowed; allow "
            f"max_memory of {mib}MiB",
            smallest_bytes=mib * MIB,
        )


def _problems(plan: RedoPlan, frames_end: int) -> Iterator[str]:
    """What a plan that this project wrote never has; names must not lead out of the folder."""
    names = set(plan.files)
    if not plan.version or len(names) < len(plan.files):
        yield "its version or its files make no sense"
    for name in (*plan.files, *plan.records, *plan.written):
        if "/" in name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            yield f"{name!r} is no name of a file in its folder"
    yield from (f"{name!r} is no file of weights" for name in plan.files if not is_weights(name))
    yield from (f"{name!r} is no record" for name in plan.records if name not in OF_RECORDS)
    others = (name for name in plan.written if name != FILE_NAME and not is_index(name))
    yield from (f"{name!r} is neither an index nor {FILE_NAME}" for name in others)
    weights = frozenset(plan.weights)
    for tensor in plan.tensors:
        yield from _problems_of(tensor, weights, frames_end)


def _problems_of(tensor: RedoTensor, weights: frozenset[str], frames_end: int) -> Iterator[str]:
    if tensor.file not in weights:
        yield f"{tensor.name!r} is in {tensor.file!r}, which it does not list"
    if min(tensor.offset, tensor.nbytes, tensor.changed) < 0:
        yield f"{tensor.name!r} has a size below 0"
    if len(tensor.digest) != HEX_DIGITS[tensor.checksum]:
        yield f"{tensor.name!r} has no {tensor.checksum}"
    if any(at < 0 or length < 0 or at + length > frames_end for at, length in tensor.parts):
        yield f"{tensor.name!r} has frames beyond the end"
