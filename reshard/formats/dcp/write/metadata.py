"""Writes ``.metadata`` of torch's distributed checkpoint, which ``formats.dcp.metadata`` reads, as torch 2.9 and later do.

It is in protocol 2, so that torch's own restricted unpickler can read it too. It does not contain the path of the folder.
(``torch/distributed/checkpoint/metadata.py`` and ``filesystem.py``)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from reshard.formats.dcp.entries import ItemPlace
from reshard.formats.dcp.write.state import StateEntry
from reshard.formats.pickle.encode import Call, Global, New, Pairs, encode_pickle
from reshard.geometry.grid import Box

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
