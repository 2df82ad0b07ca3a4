"""The entries of torch's distributed checkpoint: its tensors in pieces, its other values, and the place of each."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from reshard.formats.contents import PathKey
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
