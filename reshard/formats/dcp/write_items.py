"""The entries, the items and the ``.metadata`` of a target of torch's distributed checkpoint.

The name of an entry is its keys joined with dots. A list or a tuple without tensors and dicts in it is one value, and so one entry
(``torch/distributed/checkpoint/_traverse.py``). Where the source does not tell tuples from lists, the options that torch's optimizers keep
as tuples are known by name.

The items of one file are archives at multiples of 64, one behind the other, with zeros between them.

One insert is between the elements of two tensors: the end of an archive, which has the CRC-32 of its elements, zeros, and
the beginning of the next. torch packs items without zeros, and reads both.

``.metadata`` is written as torch 2.9 and later do, and read by ``formats.dcp.metadata``. It is in protocol 2,
so that torch's own restricted unpickler can read it too. It does not contain the path of the folder.
(``torch/distributed/checkpoint/metadata.py`` and ``filesystem.py``)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from msgspec import Struct

from reshard.checksums.crc import CRC32
from reshard.errors import PlanError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Leaf, PathKey
from reshard.formats.dcp.metadata import ItemPlace
from reshard.formats.file_map import Insert, SharedFile, StoredRanges
from reshard.formats.leaf_paths import refuse_long, settle_sequences
from reshard.formats.slices.slice_file import leaf_path
from reshard.formats.torch.saved_values import TUPLES_KEY
from reshard.formats.torch.write_archive import (
    ALIGNMENT,
    Call,
    Global,
    New,
    Pairs,
    archive_head,
    archive_of,
    archive_tail,
    elements_start,
    encode_pickle,
    tensor_pickle,
)
from reshard.geometry.dtypes import NUMBER_DTYPES, storage_bytes
from reshard.geometry.grid import Box

TUPLES = frozenset({"betas", "eps", "etas", "step_sizes"})
"""Options of torch's optimizers that are tuples: of Adam and its kin, Adafactor and Rprop (``torch/optim``)."""

_EMPTY: Mapping[str, Any] = {"None": None, "Dict": {}, "List": [], "Tuple": (), "NamedTuple": ()}

Keys = tuple[PathKey, ...]


class StateEntry(Struct, frozen=True):
    """An entry of a state dict.

    Attributes:
        path: its keys; numbers are positions of lists.
        tensor: the tensor's name in the target; None for another value.
        carried: the leaf of a value that is not read.
        values: the leaves of another value, each with its positions in it: one without any, or those of a list.
    """

    name: str
    path: tuple[str | int, ...]
    tensor: str | None = None
    carried: Leaf | None = None
    values: tuple[tuple[tuple[int, ...], Leaf], ...] = ()


def state_entries(target: TargetCheckpoint, numbers: frozenset[str]) -> list[StateEntry]:
    """The entries of a target, in the order of its tree; ``numbers``: its tensors that are Python numbers.

    Raises PlanError for two leaves that would be one entry, and for a name that is too long to be read.
    """
    # The leaf that is the whole tree has no key: it is the entry of the name '', which torch takes like any other.
    paths = settle_sequences([leaf_path(leaf) or (PathKey(""),) for leaf in target.leaves])
    found: dict[str, StateEntry] = {}
    firsts: dict[str, str] = {}
    for entry, first in _entries(target, paths, numbers):
        refuse_long(entry.name)
        if entry.name in found:
            raise PlanError(
                f"{firsts[entry.name]!r} and {first!r} would both be {entry.name!r} in torch, which joins keys with dots; rename one of them "
                "(rename)"
            )
        found[entry.name], firsts[entry.name] = entry, first
    return list(found.values())


def python_numbers(target: TargetCheckpoint) -> frozenset[str]:
    """The names of the tensors that are Python numbers in a state dict."""
    return frozenset(
        name
        for name, tensor in target.tensors.items()
        if tensor.leaf.value_type == "scalar"
        and tensor.spec.dtype in NUMBER_DTYPES
        and not tensor.spec.shape
    )


def entry_value(entry: StateEntry, numbers: Mapping[str, Any]) -> Any:
    """The value of an entry that is no tensor; ``numbers``: those of the target, by name."""
    values = [
        (at, leaf, numbers[leaf.name] if leaf.tensor else _plain(leaf)) for at, leaf in entry.values
    ]
    # A flattened optimizer has the option at the end of one key: "param_groups.0.weight.betas".
    return _nested(values, is_tuple=str(entry.path[-1]).rpartition(".")[2] in TUPLES)


def _nested(values: list[tuple[tuple[int, ...], Leaf, Any]], *, is_tuple: bool = False) -> Any:
    """The list or the tuple with these values at their positions; ``is_tuple`` where the source does not tell."""
    at, leaf, only = values[0]
    if not at:
        return only
    below: dict[int, list[tuple[tuple[int, ...], Leaf, Any]]] = defaultdict(list)
    for (first, *rest), one, value in values:
        below[first].append((tuple(rest), one, value))
    found = [_nested(below[position]) for position in sorted(below)]
    told = leaf.meta.get(TUPLES_KEY)
    return tuple(found) if (is_tuple if told is None else len(at) in told) else found


def _entries(
    target: TargetCheckpoint, paths: list[Keys], numbers: frozenset[str]
) -> Iterator[tuple[StateEntry, str]]:
    """Each entry, with the name of its first leaf."""
    split = _split_lists(target, paths, numbers)
    values: dict[Keys, list[tuple[tuple[int, ...], Leaf]]] = {}
    whole: dict[Keys, Leaf] = {}
    for leaf, path in zip(target.leaves, paths, strict=True):
        if leaf.carried or (leaf.tensor and leaf.name not in numbers):
            values[path], whole[path] = [], leaf
            continue
        above = next((path[:n] for n in _list_depths(path) if path[:n] not in split), path)
        positions = tuple(int(step.key) for step in path[len(above) :])
        values.setdefault(above, []).append((positions, leaf))
    for path, found in values.items():
        one = whole.get(path)
        if one is not None:
            of_entry = {"carried": one} if one.carried else {"tensor": one.name}
            yield _entry(path, **of_entry), one.name
        else:
            yield _entry(path, values=tuple(found)), found[0][1].name


def _entry(path: Keys, **of_entry: Any) -> StateEntry:
    keys = tuple(int(step.key) if step.is_sequence else step.key for step in path)
    return StateEntry(".".join(step.key for step in path), keys, **of_entry)


def _list_depths(path: Keys) -> Iterator[int]:
    """The depths, in keys, of the lists that a path leads through, from the outermost on."""
    return (depth for depth in range(1, len(path)) if path[depth].is_sequence)


def _split_lists(
    target: TargetCheckpoint, paths: list[Keys], numbers: frozenset[str]
) -> frozenset[Keys]:
    """The lists that are no single value, since a tensor, a dict or a value that is not read is in them."""
    found = set()
    for leaf, path in zip(target.leaves, paths, strict=True):
        is_split = (leaf.tensor and leaf.name not in numbers) or leaf.value_type == "Dict"
        is_split = is_split or leaf.carried is not None
        for depth in _list_depths(path):
            if is_split or not all(step.is_sequence for step in path[depth:]):
                found.add(path[:depth])
    return frozenset(found)


def _plain(leaf: Leaf) -> Any:
    """Text, None or an empty container; nothing else is left (``format.refuse_others``)."""
    return _EMPTY[leaf.value_type] if leaf.text is None else leaf.text


class TensorItem(Struct, frozen=True):
    """The archive of a slice of a tensor.

    Attributes:
        at: its offset in the file.
        start: offset of its first element in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    elements_bytes: int
    at: int
    start: int

    @property
    def pickle(self) -> bytes:
        return tensor_pickle(self.dtype, self.shape)

    @property
    def head(self) -> bytes:
        """The bytes before the elements."""
        return archive_head(self.pickle, self.elements_bytes)

    @property
    def elements_end(self) -> int:
        """Offset behind the last element in the file."""
        return self.start + self.elements_bytes

    def tail(self, crc: int) -> bytes:
        """The bytes behind the elements, by their CRC-32."""
        return archive_tail(self.pickle, self.elements_bytes, crc)

    @property
    def nbytes(self) -> int:
        """The size of the whole archive."""
        return self.elements_end - self.at + len(self.tail(0))


def next_item(dtype: str, box: Box, end: int) -> TensorItem:
    """The item of a slice, behind the bytes of a file that end at ``end``."""
    at = end + -end % ALIGNMENT
    nbytes = box.size * storage_bytes(dtype)
    start = at + elements_start(tensor_pickle(dtype, box.shape), nbytes)
    return TensorItem(dtype, box.shape, nbytes, at, start)


def items_file(first: int, items: Sequence[TensorItem]) -> SharedFile:
    """The file of these items; chunks that no archive holds are in its first ``first`` bytes."""
    if not items:
        return SharedFile(b"", first)
    inserts = [Insert(first, items[0].start - first, partial(_beginning, first, items[0]))]
    for item, following in pairwise(items):
        begin = item.elements_end
        inserts.append(Insert(begin, following.start - begin, partial(_between, item, following)))
    last = items[-1]
    nbytes = last.at + last.nbytes
    inserts.append(Insert(last.elements_end, nbytes - last.elements_end, partial(_end, last)))
    return SharedFile(b"", nbytes, tuple(inserts), CRC32)


def values_file(pickles: Sequence[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    """A file of items without tensors, and the offset and the length of each."""
    content, places = bytearray(), []
    for pickle in pickles:
        content += bytes(-len(content) % ALIGNMENT)
        archive = archive_of(pickle)
        places.append((len(content), len(archive)))
        content += archive
    return bytes(content), places


def _beginning(first: int, item: TensorItem, _: StoredRanges) -> bytes:
    return bytes(item.at - first) + item.head


def _between(item: TensorItem, following: TensorItem, stored: StoredRanges) -> bytes:
    tail = _end(item, stored)
    return tail + bytes(following.at - item.elements_end - len(tail)) + following.head


def _end(item: TensorItem, stored: StoredRanges) -> bytes:
    return item.tail(stored.crc(item.start, item.elements_bytes))


VERSION = "1.0.0"
"""Of the metadata, since torch 2.9; earlier versions have none, and do not look at it."""

_RECORDS = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_CONTIGUOUS = 0
"""``_MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT``."""


class PlacedItem(Struct, frozen=True):
    """An item and its place; ``box`` is that of a piece of a tensor, and None for another value."""

    box: Box | None
    place: ItemPlace


class PlacedEntry(Struct, frozen=True):
    """An entry with its items.

    Attributes:
        dtype: of a tensor; "" for another value.
    """

    entry: StateEntry
    items: Sequence[PlacedItem]
    dtype: str = ""
    shape: tuple[int, ...] = ()


def metadata_bytes(entries: Sequence[PlacedEntry]) -> bytes:
    """The file. Takes the memory of a few copies of all names, because each is used three times."""
    fields = {
        "state_dict_metadata": Pairs((one.entry.name, _described(one)) for one in entries),
        "planner_data": Pairs((one.entry.name, one.entry.path) for one in entries),
        "storage_data": Pairs(_places(entries)),
        # It would contain that path; torch 2.3 and earlier do not have it.
        "storage_meta": None,
        "version": VERSION,
    }
    return encode_pickle(_record("Metadata", fields))


def _record(name: str, state: Any = None) -> New:
    return New(Global(_RECORDS, name), state)


def _described(one: PlacedEntry) -> New:
    """The record of an entry: its kind, its shape and its pieces."""
    if not one.dtype:
        return _record("BytesStorageMetadata")
    layout = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    memory = Call(Global(_RECORDS, "_MEM_FORMAT_ENCODING"), (_CONTIGUOUS,))
    properties = (Global("torch", one.dtype), layout, False, memory, False)
    chunks = [
        _record(
            "ChunkStorageMetadata",
            {"offsets": _size(item.box.start), "sizes": _size(item.box.shape)},
        )
        for item in one.items
        if item.box is not None
    ]
    state = {
        "properties": _record("TensorProperties", properties),
        "size": _size(one.shape),
        "chunks": chunks,
    }
    return _record("TensorStorageMetadata", state)


def _places(entries: Sequence[PlacedEntry]) -> Iterator[tuple[New, New]]:
    for one in entries:
        for number, item in enumerate(one.items):
            index: dict[str, Any] = {"fqn": one.entry.name}
            if item.box is not None:  # unset fields are left out
                index |= {"offset": _size(item.box.start), "index": number}
            place = item.place
            stored = {
                "relative_path": place.file,
                "offset": place.offset,
                "length": place.nbytes,
            }
            yield _record("MetadataIndex", index), New(Global(_FILES, "_StorageInfo"), stored)


def _size(sizes: Sequence[int]) -> Call:
    return Call(Global("torch", "Size"), (tuple(sizes),))
