"""Opens state dicts that ``torch.save`` wrote: a file, or the files of a model.

The elements of a tensor lie in one range of a file, in row-major or another order of axes, so that the engine reads them in ranges. Tensors
may share a record: tied weights, and views of one storage. Each is a tensor of its own here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from reshard.arguments import Unlisted
from reshard.checksums.crc import CRC32
from reshard.errors import CorruptError, FormatError, ReshardError
from reshard.formats.base import Chunks, Reader
from reshard.formats.codecs import read_ahead
from reshard.formats.contents import (
    Container,
    Encoding,
    Extent,
    Item,
    Leaf,
    RawPiece,
    RecordedRange,
    StoredTensor,
)
from reshard.formats.leaf_paths import Path
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.safetensors.model_index import ModelIndex
from reshard.formats.slices.kept_metadata import NO_METADATA, metadata_of_files
from reshard.formats.state_dict.files import state_files
from reshard.formats.state_dict.state import (
    StateFile,
    StateLeaf,
    StateTensor,
    count_leaves,
    read_state,
)
from reshard.formats.torch.archive import RecordCrcs, crcs_of_number
from reshard.formats.torch.saved_values import (
    Unread,
    tensor_leaf,
    unread_leaf,
    unread_warnings,
    value_leaf,
)
from reshard.geometry.dtypes import element_of, storage_bytes
from reshard.geometry.grid import Box, Grid, Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.calls import each_at_once
from reshard.storage.location import Location

FORMAT = "torch"

OPENED_LEAF_BYTES = 3500
"""Memory of a leaf while it is opened: its nodes, its records, and the entry of its record in the directory.

tracemalloc measures 2200 for tensors with 16 dimensions, 1900 with two, 1100 for a number (CPython 3.11)."""

LEAF_BYTES, DIMENSION_BYTES = 2000, 36
"""Memory of an open leaf, and of a dimension of it. Measured: 1800 with two dimensions, 2000 in another order of axes."""

_MOST_SHOWN = 3


class _Held(Struct, frozen=True):
    """A leaf, its value, and the file that has it."""

    leaf: Leaf
    value: StateLeaf
    of: StateFile


def open_state_dict(root: Location, uri: str = "", unlisted: Unlisted = "leave") -> Reader:
    """Opens the state dict in a file, or in the files of a model.

    Args:
        root: viewed as one checkpoint, so that its files are in it.
        uri: the place as the user named it.
        unlisted: the treatment of tensors that the index of a model does not list.

    Raises:
        NotACheckpointError: it is not clear which file is the model.
        MissingError: a file is not there. StorageError: one cannot be read.
        CorruptError: the stored data is damaged or contradicts itself.
        FormatError: it uses a feature that is not read.
    """
    uri = uri or str(root)
    files = state_files(root)
    states = list(each_at_once(root.store, read_state, files.files))
    held, omitted = _leaves(states, files.index, unlisted)
    chunks = {name: _chunks(one.value, one.of) for name, one in held.items() if isinstance(one.value, StateTensor)}  # fmt: skip
    tensors = {name: _stored(one, chunks, root) for name, one in held.items() if one.leaf.tensor}
    return Reader(
        uri=uri,
        format=FORMAT,
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=MappingProxyType(tensors),
        leaves=tuple(one.leaf for one in held.values()),
        chunks=StateChunks(uri, held, chunks),
        metadata_bytes=root.kept_bytes + _kept_bytes(held, tensors),
        warnings=(
            *_omitted_warnings(files.index, omitted),
            *unread_warnings([one.leaf for one in held.values()]),
            *_left_out_warnings(states),
            *_shared_warnings(held),
        ),
        metadata=metadata_of_files(
            (), {} if files.index is None else files.index.metadata, NO_METADATA
        ),
    )


def leaf_count(root: Location) -> int:
    """The number of leaves in the files; 0 where they cannot be read, which opening them reports."""
    try:
        return sum(each_at_once(root.store, count_leaves, state_files(root).files))
    except ReshardError:
        return 0


class StateChunks(Chunks):
    """The bytes of an open state dict."""

    def __init__(
        self, uri: str, held: Mapping[str, _Held], chunks: Mapping[str, GatheredChunks]
    ) -> None:
        self._uri, self._held, self._chunks = uri, held, chunks

    def locate(self, name: str, index: Index) -> Extent | None:
        """The place of a chunk's elements. Raises FormatError where there is no such tensor."""
        if name in self._chunks:
            return self._chunks[name].locate(index)
        one = self._held.get(name)
        if one is None or not one.leaf.tensor or index != ():
            raise FormatError(f"{self._uri} has no tensor named {name!r}")
        element = element_of(one.value)[1]
        return Extent(str(one.of.file), 0, len(element), inline=element)

    def recorded_ranges(self, name: str) -> Sequence[RecordedRange]:
        """The record of a tensor, with its CRC-32."""
        one = self._held.get(name)
        if one is None or not isinstance(one.value, StateTensor) or not one.value.record.crc:
            return ()
        record = one.value.record
        place = Extent(str(one.of.file), one.value.start, record.nbytes, version=one.of.version)
        return (RecordedRange(place, CRC32, record.crc),)


def _leaves(
    states: Sequence[StateFile], index: ModelIndex | None, unlisted: Unlisted
) -> tuple[dict[str, _Held], list[str]]:
    """The leaves by name, in the order of the files, and the names that the index leaves out."""
    held: dict[str, _Held] = {}
    omitted: list[str] = []
    for state in states:
        for path, value in state.leaves:
            leaf = _leaf(path, value, state)
            if index is not None and not _is_taken(path, state, index, unlisted):
                omitted.append(f"{leaf.name!r} in {state.file.name}")
            elif held.setdefault(leaf.name, one := _Held(leaf, value, state)) is not one:
                raise FormatError(
                    f"{state.file}: two leaves are named {leaf.name[:200]!r} once their keys are joined; rename one where the checkpoint is saved"
                )
    _refuse_absent(states, index)
    return held, omitted


def _leaf(path: Path, value: StateLeaf, state: StateFile) -> Leaf:
    if isinstance(value, Unread):
        return unread_leaf(path, value, state.digest or state.version)
    return tensor_leaf(path) if isinstance(value, StateTensor) else value_leaf(path, value)


def _is_taken(path: Path, state: StateFile, index: ModelIndex, unlisted: Unlisted) -> bool:
    """True if a leaf is read from a file: the index decides, and lists keys of the dict."""
    listed = index.weight_map.get(path[0].key)
    return unlisted == "include" if listed is None else listed == state.file.name


def _refuse_absent(states: Sequence[StateFile], index: ModelIndex | None) -> None:
    """Raises CorruptError where the index lists a name that its file does not hold."""
    if index is None:
        return
    keys = {state.file.name: {path[0].key for path, _ in state.leaves} for state in states}
    for name, file in index.weight_map.items():
        if name not in keys[file]:
            raise CorruptError(
                f"{index.file} says that {name[:200]!r} is in {file!r}, which does not hold it; index and files are not of one checkpoint"
            )


def _chunks(value: StateTensor, of: StateFile) -> GatheredChunks:
    tensor = value.tensor
    return gathered_chunks(tensor.shape, storage_bytes(tensor.dtype), [_piece(value, of)])


def _piece(value: StateTensor, of: StateFile) -> RawPiece:
    tensor = value.tensor
    offset = value.start + tensor.offset
    box = Box.full(tensor.shape)
    return RawPiece(box, str(of.file), offset, tensor.order, of.version, tensor.strides)


def _stored(one: _Held, chunks: Mapping[str, GatheredChunks], root: Location) -> StoredTensor:
    name, value = one.leaf.name, one.value
    if not isinstance(value, StateTensor):
        dtype, element = element_of(value)
        spec = TensorSpec(name, (), dtype, Grid.whole(()))
        crcs = crcs_of_number(element) if one.of.is_checked else None
        return StoredTensor(spec, Encoding(), bytes(len(element)), False, crcs=crcs)
    tensor, cut = value.tensor, chunks[name]
    spec = TensorSpec(name, tensor.shape, tensor.dtype, cut.grid)
    itemsize = storage_bytes(tensor.dtype)
    pieces, values = ([_piece(value, one.of)], [value.record.crc]) if tensor.nbytes else ([], [])
    recorded = RecordCrcs.of(pieces, values, itemsize) if value.is_all or not pieces else None
    return StoredTensor(
        spec,
        read_ahead(cut.encoding, root.store),
        bytes(itemsize),
        False,
        crcs=recorded.summed() if recorded else None,
    )


def _kept_bytes(held: Mapping[str, _Held], tensors: Mapping[str, StoredTensor]) -> int:
    ranks = sum(len(tensor.spec.shape) for tensor in tensors.values())
    names = sum(map(len, held))
    return LEAF_BYTES * len(held) + DIMENSION_BYTES * ranks + 4 * names


def _omitted_warnings(index: ModelIndex | None, omitted: Sequence[str]) -> Iterator[str]:
    if index is not None and omitted:
        yield (
            f'{index.file} does not list {_some(omitted)} of its files, left out here; take them with (unlisted="include")'
        )


def _left_out_warnings(states: Sequence[StateFile]) -> Iterator[str]:
    """A sentence about values that are not read, except for their tensors."""
    left_out = [f"{name!r} is {kind}" if name else f"it is {kind}" for state in states for name, kind in state.left_out]  # fmt: skip
    if left_out:
        yield (
            f"{_some(left_out)}: only the program that wrote such values can read them; they are left out, but for tensors in them"
        )


def _shared_warnings(held: Mapping[str, _Held]) -> Iterator[str]:
    """A sentence about tensors that are one in the file."""
    first: dict[tuple[object, ...], str] = {}
    same: dict[str, list[str]] = defaultdict(list)
    for name, one in held.items():
        value = one.value
        if isinstance(value, StateTensor) and value.tensor.nbytes:
            known = first.setdefault((str(one.of.file), value.tensor), name)
            if known != name:
                same[known].append(name)
    shared = [f"{name!r} with {known!r}" for known, names in same.items() for name in names]
    if shared:
        yield (
            f"tensors share their elements: {_some(shared)}; each is read and written as one of its own, so leave one out (drop) where the "
            "program that loads them ties them again"
        )


def _some(shown: Sequence[str]) -> str:
    more = f" and {len(shown) - _MOST_SHOWN:,} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(shown[:_MOST_SHOWN]) + more
