"""The content of one file of ``torch.save``: its tensors, wherever they are, and the plain values of its tree, in order.

The pickle is interpreted and never run (``formats/pickle``). A tensor that is not read is a leaf that names its kind; every other value is
left out, and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.leaf_paths import Path
from reshard.formats.limits import MAX_ALL_NAMES_CHARACTERS, MAX_LEAVES, MAX_NAME_CHARACTERS
from reshard.formats.pickle.interpreter import read_pickle
from reshard.formats.pickle.nodes import Built
from reshard.formats.state_dict.pickled_values import LeftOut, PickledValue, pickled_values
from reshard.formats.state_dict.saved_tensor import STATE_NAMES
from reshard.formats.state_dict.state_archive import StateArchive, opened_archive
from reshard.formats.torch.archive import PICKLE, ArchiveRecord
from reshard.formats.torch.archived_tensor import ArchivedTensor, archived_tensor
from reshard.formats.torch.plain_value import Empty, NotPlainError, Plain, Unread, most_parts
from reshard.storage.location import Location


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
