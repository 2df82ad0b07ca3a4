"""The content of one file of ``torch.save``: its tensors, wherever they are, and the plain values of its tree, in order.

The pickle is interpreted and never run (``formats/torch/pickle_interpreter``). A tensor that is not read is a leaf that names its kind; every
other value is left out, and named.

Opens the archive of a state dict: its end, which lists the records, its pickle, and the header of each record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.foreign import refuse_stand_in
from reshard.formats.leaf_paths import Path
from reshard.formats.limits import MAX_ALL_NAMES_CHARACTERS, MAX_LEAVES, MAX_NAME_CHARACTERS
from reshard.formats.state_dict.files import (
    ARCHIVE,
    LEGACY,
    WINDOW_BYTES,
    is_safetensors_start,
    start_of,
)
from reshard.formats.state_dict.pickled_values import (
    STATE_NAMES,
    LeftOut,
    PickledValue,
    pickled_values,
)
from reshard.formats.torch.archive import (
    LOCAL_BYTES,
    OF_STATE,
    PICKLE,
    Archive,
    ArchiveRecord,
    open_archive,
)
from reshard.formats.torch.pickle_interpreter import read_pickle
from reshard.formats.torch.pickle_machine import Built
from reshard.formats.torch.saved_values import (
    ArchivedTensor,
    Empty,
    NotPlainError,
    Plain,
    Unread,
    archived_tensor,
    most_parts,
)
from reshard.storage.base import FileStatus, OpenFile
from reshard.storage.calls import ByteRange, open_for_parts, read_many
from reshard.storage.location import Location


class StateArchive:
    """An archive in a file that is open.

    Attributes:
        version: identifies the content of the file; see ``FileStatus.version``.
    """

    def __init__(self, file: Location, found: FileStatus, opened: OpenFile, start: bytes) -> None:
        self.version = found.version
        self._file, self._found, self._opened = file, found, opened
        end = max(0, found.nbytes - WINDOW_BYTES)
        self._windows = ((0, start), (end, opened.read(end, found.nbytes - end)))
        self._ahead: Mapping[ByteRange, bytes] = {}
        self.archive: Archive = open_archive(self.read, found.nbytes, str(file), OF_STATE)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the file; CorruptError where there are fewer."""
        ahead = self._ahead.get(self._range(offset, nbytes))
        if ahead is not None:
            return ahead
        for begin, window in self._windows:
            if begin <= offset and offset + nbytes <= begin + len(window):
                return window[offset - begin : offset - begin + nbytes]
        data = self._opened.read(offset, nbytes)
        if len(data) < nbytes:
            raise CorruptError(
                f"{self._file} ends after {self._found.nbytes:,} bytes, but a part of it should be at {offset:,}; restore it from a copy"
            )
        return data

    def read_headers(self, names: Iterable[str]) -> None:
        """Reads the headers of records ahead where each read is a request."""
        records = self.archive.records
        found = (records[name] for name in names if name in records)
        ranges = (self._range(record.header, LOCAL_BYTES) for record in found)
        self._ahead = read_many(self._file.store, ranges)

    def _range(self, offset: int, nbytes: int) -> ByteRange:
        return ByteRange(str(self._file), self.version, offset, nbytes)


@contextmanager
def opened_archive(file: Location) -> Iterator[StateArchive]:
    """The archive in a file.

    Raises CorruptError where it is damaged, FormatError for features that ``torch.save`` does not write now.
    """
    found = file.status(f"the file {file.name!r}")
    if found is None or found.kind != "file":
        raise FormatError(f"{file} is no plain file; expected one that torch.save wrote")
    start = start_of(file)
    _refuse_others(start, file)
    with closing(open_for_parts(file, found)) as opened:
        one = StateArchive(file, found, opened, start)
        one.archive.refuse_big_endian()
        yield one


def _refuse_others(start: bytes, file: Location) -> None:
    refuse_stand_in(start, str(file))
    if start.startswith(LEGACY):
        raise FormatError(
            f"{file} is in the form that torch.save wrote before torch 1.6, which is not read; in torch, "
            "torch.save(torch.load(FILE, weights_only=True), 'NAME.pt') writes an archive, which is"
        )
    if is_safetensors_start(start):
        raise FormatError(
            f"{file} is a safetensors file by its content, whatever its name says; name the file itself, or give it a name that ends in "
            ".safetensors"
        )
    if not start.startswith(ARCHIVE):
        raise CorruptError(
            f"{file} should be an archive of torch.save, but it does not begin as an archive does; restore the file from a copy"
        )


class StateTensor(Struct, frozen=True):
    """A tensor, and the record that its elements are in.

    Attributes:
        start: offset of the record's first byte in the file.
    """

    tensor: ArchivedTensor
    record: ArchiveRecord
    start: int

    @property
    def is_all(self) -> bool:
        """True if the record is the tensor's elements and nothing else."""
        return self.record.nbytes == self.tensor.nbytes and not self.tensor.strides


StateLeaf = StateTensor | Plain | Empty | Unread
"""The value of a leaf; an Unread for a tensor that is not read."""


class StateFile(Struct, frozen=True):
    """A file that was read.

    Attributes:
        leaves: path and value of each.
        left_out: name and kind of each value that is no leaf.
        version: identifies the content of the file; see ``FileStatus.version``.
        is_checked: True if the CRC of its pickle was compared.
        digest: of all its content, 8 hex digits; "" where no checksum is recorded.
    """

    file: Location
    version: str
    leaves: tuple[tuple[Path, StateLeaf], ...]
    left_out: tuple[tuple[str, str], ...]
    is_checked: bool
    digest: str


def read_state(file: Location) -> StateFile:
    """The content of a file; no elements are read.

    Raises CorruptError where it is damaged, FormatError where it is too large or holds nothing that is read.
    """
    with opened_archive(file) as opened:
        archive = opened.archive
        found, left_out = list[tuple[Path, Any]](), list[tuple[str, str]]()
        for path, value in _named_values(opened, file):
            if isinstance(value, LeftOut):
                left_out.append((_name(path), value.kind))
            else:
                found.append(
                    (path, _tensor(path, value, file) if isinstance(value, Built) else value)
                )
        if left_out and not found:
            raise FormatError(
                f"{file} holds no tensors, numbers or text, but {left_out[0][1]}; expected what a training saves, such as a state dict"
            )
        tensors = [value for _, value in found if isinstance(value, ArchivedTensor)]
        opened.read_headers({tensor.record for tensor in tensors})
        records = {name: archive.start(name) for name in {tensor.record for tensor in tensors}}
        leaves = tuple(
            (path, _placed(value, records, file) if isinstance(value, ArchivedTensor) else value)
            for path, value in found
        )
        is_checked = bool(archive.records[PICKLE].crc)
        return StateFile(file, opened.version, leaves, tuple(left_out), is_checked, archive.digest())  # fmt: skip


def count_leaves(file: Location) -> int:
    """The number of leaves in a file."""
    with opened_archive(file) as opened:
        return sum(not isinstance(value, LeftOut) for _, value in _named_values(opened, file))


def _named_values(opened: StateArchive, file: Location) -> Iterator[tuple[Path, PickledValue]]:
    """The values, each with its path, which is no longer than is read."""
    pickled = opened.archive.small(PICKLE)
    root = read_pickle(pickled, STATE_NAMES, str(file))
    characters = leaves = 0
    try:
        for path, value in pickled_values(root, most_parts(pickled)):
            if not path:
                if not isinstance(value, Empty):
                    yield path, value if isinstance(value, LeftOut) else LeftOut("one value")
                continue  # an empty dict is a leaf of its own only in another
            name, leaves = _name(path), leaves + 1
            characters += len(name)
            if characters > MAX_ALL_NAMES_CHARACTERS or leaves > MAX_LEAVES:
                raise FormatError(
                    f"{file} has more than {MAX_LEAVES:,} values, or names of more than {MAX_ALL_NAMES_CHARACTERS:,} characters together, the "
                    "most that is read"
                )
            if len(name) > MAX_NAME_CHARACTERS or "\0" in name:
                raise FormatError(
                    f"{file} has a leaf {name[:40]!r}… of {len(name):,} characters; expected at most {MAX_NAME_CHARACTERS:,}, and none that "
                    "is NUL"
                )
            yield path, value
    except NotPlainError as error:
        raise FormatError(f"{file} holds {error}, so that it cannot be handled safely") from None


def _tensor(path: Path, node: Built, file: Location) -> ArchivedTensor | Unread:
    """The tensor of a node, or the kind of one that is not read. Raises CorruptError, naming the leaf, for a contradiction."""
    where = f"{file}: {_name(path)!r}"
    try:
        return archived_tensor(node, where)
    except CorruptError:
        raise
    except FormatError as error:
        return Unread(f"a tensor that {str(error).removeprefix(where).lstrip(': ')}")


def _placed(
    tensor: ArchivedTensor, records: Mapping[str, tuple[ArchiveRecord, int]], file: Location
) -> StateTensor:
    record, start = records[tensor.record]
    if record.nbytes != tensor.record_bytes:
        raise CorruptError(
            f"{file} has {record.nbytes:,} bytes in its record {tensor.record[:200]!r}; expected {tensor.record_bytes:,}, so restore the file "
            "from a copy"
        )
    return StateTensor(tensor, record, start)


def _name(path: Path) -> str:
    return "/".join(key.key for key in path)
