"""Reads ``.metadata`` of torch's distributed checkpoint, a pickle of one object, without running it: the entries and their places.

Reads ``.metadata`` of torch's distributed checkpoint: a pickle of one object, without running it.

::

    Metadata
      state_dict_metadata  NAME → TensorStorageMetadata(properties, size, chunks) or BytesStorageMetadata()
      planner_data         NAME → the keys of the saved tree; numbers are positions of lists; None where torch kept no tree
      storage_data         MetadataIndex(fqn, offset) → _StorageInfo(relative_path, offset, length)
  mcore_data           NAME → additions of Megatron Core up to 0.13 to a tensor

Fields that are not set are left out (``MetadataIndex.offset`` of a value, ``_StorageInfo.transform_descriptors``). Files of torch 2.2 to
2.14 are read; ``torch/distributed/checkpoint/metadata.py`` and ``filesystem.py`` declare it.

Ranks that save without talking to each other (``use_collectives=False``) write ``__0.metadata``, ``__1.metadata``, …: each
knows the full shapes, its own pieces, and every value. They are joined here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, shorten
from reshard.formats.contents import PathKey
from reshard.formats.limits import MAX_LEAVES, MAX_NAME_CHARACTERS, MAX_PATH_KEYS
from reshard.formats.torch.pickle_interpreter import read_pickle
from reshard.formats.torch.pickle_machine import (
    Built,
    Name,
    Table,
    expect_built,
    expect_node,
    fields_of,
)
from reshard.formats.torch.saved_values import DTYPE_NAMES, SIZE, dtype_of, sizes_of
from reshard.geometry.grid import Box


class ItemPlace(Struct, frozen=True):
    """The place of an item: one archive of ``torch.save`` in a file of the folder."""

    file: str
    offset: int
    nbytes: int


class TensorPiece(Struct, frozen=True):
    """A box of a tensor; ``places`` has one for each rank that stored it."""

    box: Box
    places: tuple[ItemPlace, ...]


class TensorEntry(Struct, frozen=True):
    """A tensor; ``pieces`` may be empty boxes, and in any order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[TensorPiece, ...]


class ValueEntry(Struct, frozen=True):
    """A value that is no tensor; ``places`` has one for each rank that stored it.

    Attributes:
        unread: its kind, if it is not looked into; then ``places`` are those of all its parts.
    """

    name: str
    places: tuple[ItemPlace, ...]
    unread: str = ""


class Entries(Struct, frozen=True):
    """The content of the metadata files.

    Attributes:
        entries: by name, in the order of the saved tree.
        paths: the keys of each entry in the saved tree; an entry that is not listed has its name as its only key.
        flattened: the tensors that are stored as ranges of flattened parts, which only Megatron does.
    """

    entries: Mapping[str, TensorEntry | ValueEntry]
    paths: Mapping[str, tuple[PathKey, ...]]
    flattened: frozenset[str] = frozenset()


_RECORDS = "torch.distributed.checkpoint.metadata."
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata."
_FILES = "torch.distributed.checkpoint.filesystem."
_PLANNER = "torch.distributed.checkpoint.planner."
_MEGATRON = "megatron.core.dist_checkpointing.strategies.torch."
_FLATTENED = "nd_reformulated_orig_global_shape"
_LAYOUT = "_get_layout"
_STRIDED = "torch.strided"

_OF_PLANS = ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData")

NAMES = {
    f"{_RECORDS}Metadata": "Metadata",
    f"{_RECORDS}TensorStorageMetadata": "TensorStorageMetadata",
    f"{_RECORDS}BytesStorageMetadata": "BytesStorageMetadata",
    f"{_RECORDS}ChunkStorageMetadata": "ChunkStorageMetadata",
    f"{_RECORDS}MetadataIndex": "MetadataIndex",
    f"{_RECORDS}StorageMeta": "StorageMeta",
    f"{_RECORDS}TensorProperties": "TensorProperties",
    f"{_RECORDS}_MEM_FORMAT_ENCODING": "_MEM_FORMAT_ENCODING",
    # Those two were elsewhere until torch 2.2.
    f"{_SHARDED}TensorProperties": "TensorProperties",
    f"{_SHARDED}MEM_FORMAT_ENCODING": "_MEM_FORMAT_ENCODING",
    f"{_FILES}_StorageInfo": "_StorageInfo",
    "torch.Size": SIZE,
    "torch.serialization._get_layout": _LAYOUT,
    # The folder that it was saved to, which is not used.
    "pathlib.PosixPath": "Path",
    "pathlib.WindowsPath": "Path",
    "pathlib._local.PosixPath": "Path",
    "pathlib._local.WindowsPath": "Path",
    # Megatron also keeps the plan of each rank, which says nothing that the rest does not.
    **{f"{_PLANNER}{name}": name for name in _OF_PLANS},
    f"{_MEGATRON}MCoreSavePlan": "SavePlan",
    f"{_MEGATRON}MCoreMetadata": "Metadata",
    **DTYPE_NAMES,
}
"""Every name in such a file, and its text in nodes."""

_Key = tuple[str, tuple[int, ...] | None]
_Places = Mapping[_Key, Sequence[ItemPlace]]


class MetadataFile(Struct, frozen=True):
    """A metadata file as it was read; ``where`` is its path, for messages."""

    data: bytes
    where: str


def parse_metadata(files: Sequence[MetadataFile]) -> Entries:
    """The entries that ``.metadata``, or the files of all ranks, list.

    Raises CorruptError where they are damaged or contradict each other, FormatError where they are of a kind that is not read.
    """
    parsed = [_parsed(file) for file in files]
    places: dict[_Key, list[ItemPlace]] = defaultdict(list)
    for one in parsed:
        for key, place in one.places:
            places[key].append(place)
    named: dict[str, list[tuple[Any, str]]] = defaultdict(list)
    for one in parsed:
        for name, node in one.listed:
            named[name].append((node, one.where))
    if len(named) > MAX_LEAVES:
        raise FormatError(
            f"{files[0].where} lists {len(named):,} entries; at most {MAX_LEAVES:,} are read"
        )
    entries = {name: _entry(name, nodes, places) for name, nodes in named.items()}
    paths = {name: path for one in reversed(parsed) for name, path in one.paths.items()}
    return Entries(entries, paths, frozenset().union(*(one.flattened for one in parsed)))


class _Parsed(Struct, frozen=True):
    """One file: its entries by name, still as nodes, the place of each item, and the paths."""

    where: str
    listed: list[tuple[str, Any]]
    places: list[tuple[_Key, ItemPlace]]
    paths: dict[str, tuple[PathKey, ...]]
    flattened: frozenset[str]


def _parsed(file: MetadataFile) -> _Parsed:
    where = file.where
    root = expect_built(
        read_pickle(file.data, NAMES, where, is_closed=True), "Metadata", "it", where
    )
    fields = fields_of(root, where)
    listed = expect_node(fields.get("state_dict_metadata"), Table, "state_dict_metadata", where)
    stored = expect_node(fields.get("storage_data"), Table, "storage_data", where)
    tree = fields.get("planner_data")
    paths = [] if tree is None else expect_node(tree, Table, "planner_data", where).pairs()
    return _Parsed(
        where,
        [(_name(name, where), node) for name, node in listed.pairs()],
        [_place(index, info, where) for index, info in stored.pairs()],
        {_name(name, where): _path(path, name, where) for name, path in paths},
        _flattened(fields.get("mcore_data"), where),
    )


def _flattened(more: Any, where: str) -> frozenset[str]:
    """The tensors that Megatron stored in another shape than they have."""
    found = [] if more is None else expect_node(more, Table, "mcore_data", where).pairs()
    return frozenset(
        _name(name, where)
        for name, of in found
        if _FLATTENED in expect_node(of, Table, f"mcore_data of {name!r}", where).entries[::2]
    )


def _name(value: Any, where: str) -> str:
    name = expect_node(value, str, "the name of an entry", where)
    if len(name) > MAX_NAME_CHARACTERS or "\0" in name:
        raise FormatError(
            f"{where} has an entry {name[:40]!r}… of {len(name):,} characters; expected at most {MAX_NAME_CHARACTERS:,}, and none "
            "that is NUL"
        )
    return name


def _path(value: Any, name: str, where: str) -> tuple[PathKey, ...]:
    keys = expect_node(value, tuple, f"the path of {name!r}", where)
    if not 0 < len(keys) <= MAX_PATH_KEYS or not all(type(key) in (str, int) for key in keys):
        raise CorruptError(
            f"{where}: the path of {name!r} should be 1 to {MAX_PATH_KEYS} names and positions, but is {shorten(keys)}"
        )
    return tuple(PathKey(str(key), type(key) is int) for key in keys)


def _place(index: Any, info: Any, where: str) -> tuple[_Key, ItemPlace]:
    """The key of an item (name and offset), and its place."""
    of = fields_of(expect_built(index, "MetadataIndex", "a key of storage_data", where), where)
    name = _name(of.get("fqn"), where)
    offset = of.get("offset")
    start = None if offset is None else sizes_of(offset, f"the offset of {name!r}", where)
    at = fields_of(expect_built(info, "_StorageInfo", f"the place of {name!r}", where), where)
    transforms = at.get("transform_descriptors")
    if transforms:
        raise FormatError(
            f"{where}: {name!r} is stored transformed ({shorten(transforms)}), which is not read; save the checkpoint without extensions of "
            "its writer, such as compression"
        )
    file = expect_node(at.get("relative_path"), str, f"the file of {name!r}", where)
    if "/" in file or "\\" in file or "\0" in file or file in ("", ".", ".."):
        raise CorruptError(
            f"{where}: the file of {name!r} is {file[:200]!r}; expected the name of a file in this folder"
        )
    what = f"the place of {name!r}"
    begin, nbytes = sizes_of((at.get("offset"), at.get("length")), what, where)
    return (name, start), ItemPlace(file, begin, nbytes)


def _entry(
    name: str, nodes: Sequence[tuple[Any, str]], places: _Places
) -> TensorEntry | ValueEntry:
    """The entry of a name, from the nodes that the files have of it."""
    kinds = {node.name if isinstance(node, Built) else "" for node, _ in nodes}
    where = nodes[0][1]
    if kinds == {"BytesStorageMetadata"}:
        return ValueEntry(name, _stored((name, None), places, f"the value {name!r}", where))
    if kinds != {"TensorStorageMetadata"}:
        raise CorruptError(
            f"{where}: {name!r} should be a tensor or a value, but is {shorten(nodes[0][0])}"
        )
    found = [_tensor(name, node, at) for node, at in nodes]
    if any(one[:2] != found[0][:2] for one in found):
        raise CorruptError(
            f"{where} and the files of other ranks have {name!r} with different shapes or dtypes; the files are not of one checkpoint"
        )
    dtype, shape, _ = found[0]
    boxes = dict.fromkeys(box for one in found for box in one[2])
    pieces = tuple(
        TensorPiece(box, _stored((name, box.start), places, f"the piece {box} of {name!r}", where))
        for box in boxes
    )
    return TensorEntry(name, dtype, shape, pieces)


def _stored(key: _Key, places: _Places, what: str, where: str) -> tuple[ItemPlace, ...]:
    found = places.get(key)
    if not found:
        raise CorruptError(
            f"{where} lists {what}, but does not say where it is stored; restore the file from a copy"
        )
    return tuple(dict.fromkeys(found))


def _tensor(name: str, node: Built, where: str) -> tuple[str, tuple[int, ...], list[Box]]:
    """The dtype, the shape and the boxes of a tensor."""
    fields, what = fields_of(node, where), f"{where}: tensor {name!r}"
    properties = expect_built(fields.get("properties"), "TensorProperties", "properties", what)
    state = expect_node(properties.state, tuple, "the properties", what)
    if not state or not isinstance(state[0], Name):
        raise CorruptError(f"{what}: its properties should begin with a dtype")
    dtype = dtype_of(state[0].text, what)
    layout = state[1] if len(state) > 1 else None
    if isinstance(layout, Built) and layout.name == _LAYOUT and layout.arguments != (_STRIDED,):
        raise FormatError(
            f"{what} has the layout {shorten(layout.arguments)}, which is not read; expected {_STRIDED}: save it after to_dense()"
        )
    shape = sizes_of(fields.get("size"), "its size", what)
    chunks = expect_node(fields.get("chunks"), list, "its chunks", what)
    return dtype, shape, [_box(chunk, len(shape), what) for chunk in chunks]


def _box(chunk: Any, rank: int, what: str) -> Box:
    fields = fields_of(expect_built(chunk, "ChunkStorageMetadata", "a chunk", what), what)
    offsets = sizes_of(fields.get("offsets"), "the offsets of a chunk", what)
    sizes = sizes_of(fields.get("sizes"), "the sizes of a chunk", what)
    if len(offsets) != rank or len(sizes) != rank:
        raise CorruptError(
            f"{what} has {rank} dimensions, but a chunk at {shorten(list(offsets))} of size {shorten(list(sizes))}"
        )
    return Box(offsets, tuple(a + n for a, n in zip(offsets, sizes, strict=True)))
