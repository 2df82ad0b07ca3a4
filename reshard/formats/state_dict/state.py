"""What one file of ``torch.save`` holds: the tensors and plain values of its tree, in order.

The pickle is interpreted and never run (``formats/pickle``). It may use the names that plain state dicts have, and those by which tensors
that are not read can be refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError
from reshard.formats.leaf_paths import Path
from reshard.formats.limits import MAX_ALL_NAMES_CHARACTERS, MAX_LEAVES, MAX_NAME_CHARACTERS
from reshard.formats.pickle.interpreter import read_pickle
from reshard.formats.pickle.nodes import Built, Table
from reshard.formats.state_dict.state_archive import PICKLE, StateArchive, opened_archive
from reshard.formats.torch.archive import ArchiveRecord
from reshard.formats.torch.archived_tensor import ArchivedTensor, archived_tensor, is_tensor
from reshard.formats.torch.plain_value import (
    ORDERED,
    PLAIN_NAMES,
    Empty,
    NotPlainError,
    Plain,
    leaf_nodes,
    plain_leaf,
)
from reshard.storage.location import Location

_PARAMETER = "Parameter"

_REFUSED: Mapping[str, str] = {
    "_rebuild_qtensor": "a quantised tensor, which is not read; save it after dequantize()",
    "_rebuild_sparse_tensor": "a sparse tensor, which is not read; save it after to_dense()",
    "_rebuild_meta_tensor_no_storage": "a tensor of the device 'meta', which has no elements; leave it out where it is saved",
}
"""Functions of ``torch._utils`` by which a tensor that is not read is made, and what is said of it."""

STATE_NAMES: Mapping[str, str] = {
    **PLAIN_NAMES,
    "torch._utils._rebuild_parameter": _PARAMETER,
    **{f"torch._utils.{name}": name for name in _REFUSED},
    **{
        name: name
        for name in (
            "torch.QInt8Storage",
            "torch.QUInt8Storage",
            "torch.QInt32Storage",
            "torch.per_tensor_affine",
            "torch.per_channel_affine",
            "torch.serialization._get_layout",
        )
    },
}
"""Every name that the pickle of a state dict may use."""

_FEW_PARTS = 1 << 16
"""More parts than these take a byte each at least, unless they are the same ones again and again."""

_EXPECTED = "expected tensors, numbers, text, None, and dicts, lists and tuples of them"


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
        """Whether the record is the tensor's elements and nothing else."""
        return self.record.nbytes == self.tensor.nbytes


class StateFile(Struct, frozen=True):
    """A file that was read.

    Attributes:
        leaves: path, and what is there.
        version: which content of the file; see ``FileStatus.version``.
        is_checked: whether the CRC of its pickle was compared.
    """

    file: Location
    version: str
    leaves: tuple[tuple[Path, StateTensor | Plain | Empty], ...]
    is_checked: bool


def read_state(file: Location) -> StateFile:
    """What a file holds; no elements are read.

    Raises CorruptError where it is damaged, FormatError for what is not read, a name beyond the list (UnknownNameError) among it.
    """
    with opened_archive(file) as opened:
        archive = opened.archive
        found = [(path, _value(path, node, file)) for path, node in _named_nodes(opened, file)]
        tensors = [value for _, value in found if isinstance(value, ArchivedTensor)]
        opened.read_headers({tensor.record for tensor in tensors})
        records = {name: archive.start(name) for name in {tensor.record for tensor in tensors}}
        leaves = tuple(
            (path, _placed(value, records, file) if isinstance(value, ArchivedTensor) else value)
            for path, value in found
        )
        return StateFile(file, opened.version, leaves, bool(archive.records[PICKLE].crc))


def count_leaves(file: Location) -> int:
    """How many leaves a file has."""
    with opened_archive(file) as opened:
        return sum(1 for _ in _named_nodes(opened, file))


def _named_nodes(opened: StateArchive, file: Location) -> Iterator[tuple[Path, Any]]:
    """The leaves as nodes, each with its path."""
    pickled = opened.archive.small(PICKLE)
    root = read_pickle(pickled, STATE_NAMES, str(file))
    if not (isinstance(root, Table) or (isinstance(root, Built) and root.name == ORDERED)):
        raise FormatError(
            f"{file} holds {_kind(root)}; expected a dict, such as a state dict: save {{'NAME': …}}"
        )
    characters = 0
    try:
        for path, node in leaf_nodes(root, min(MAX_LEAVES, max(_FEW_PARTS, len(pickled)))):
            name = _name(path)
            characters += len(name)
            if characters > MAX_ALL_NAMES_CHARACTERS:
                raise FormatError(
                    f"{file} has names of more than {MAX_ALL_NAMES_CHARACTERS:,} characters together, the most that is read"
                )
            if len(name) > MAX_NAME_CHARACTERS or "\0" in name:
                raise FormatError(
                    f"{file} has a leaf {name[:40]!r}… of {len(name):,} characters; expected at most {MAX_NAME_CHARACTERS:,}, and none that "
                    "is NUL"
                )
            if path:  # an empty dict is a leaf of its own only in another
                yield path, node
    except NotPlainError as error:
        raise FormatError(f"{file} holds {error}; {_EXPECTED}") from None


def _value(path: Path, node: Any, file: Location) -> ArchivedTensor | Plain | Empty:
    """What a leaf is. Raises FormatError, naming the leaf, for what is not read."""
    where = f"{file}: {_name(path)!r}"
    if isinstance(node, Built):
        if node.name == _PARAMETER and node.arguments and isinstance(node.arguments[0], Built):
            node = node.arguments[0]
        if node.name in _REFUSED:
            raise FormatError(f"{where} is {_REFUSED[node.name]}")
        if is_tensor(node):
            return archived_tensor(node, where)
    try:
        return plain_leaf(node)
    except NotPlainError as error:
        raise FormatError(f"{where} is {error}; {_EXPECTED}: leave it out where it is saved") from None  # fmt: skip


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


def _kind(root: Any) -> str:
    if is_tensor(root):
        return "one tensor"
    if isinstance(root, Built):
        return f"an object of {root.name}"
    return f"a {type(root).__name__}"
