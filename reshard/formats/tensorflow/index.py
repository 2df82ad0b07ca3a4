"""The index of a checkpoint of TensorFlow: an entry for each tensor, and for each slice of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, MissingError
from reshard.formats.limits import MAX_LEAVES, MAX_NAME_CHARACTERS
from reshard.formats.tensorflow.bundle import BundleEntry, Extents, Header, read_entry, read_header
from reshard.formats.tensorflow.files import index_of
from reshard.formats.tensorflow.slice_keys import slice_key
from reshard.formats.tensorflow.table import entries
from reshard.storage.base import FileStatus
from reshard.storage.location import Location

_SLICE = b"\0"
"""Begins the key of a slice; no tensor's name begins with it."""


class StoredSlice(Struct, frozen=True):
    """A slice of a tensor, and the entry of its own."""

    extents: Extents
    entry: BundleEntry


class IndexEntry(Struct, frozen=True):
    """A tensor as the index has it.

    Attributes:
        slices: all that it is stored in; none for a tensor that is stored whole.
    """

    key: str
    entry: BundleEntry
    slices: tuple[StoredSlice, ...] = ()


class BundleIndex(Struct, frozen=True):
    """The content of the index of a checkpoint.

    Attributes:
        nbytes: of the file.
    """

    header: Header
    tensors: tuple[IndexEntry, ...]
    nbytes: int


def read_index(root: Location) -> BundleIndex:
    """The index of the checkpoint that a prefix names.

    Raises MissingError where it is not there, CorruptError where it is damaged or says the impossible, FormatError for what is not
    supported.
    """
    where = str(index_of(root))
    header: Header | None = None
    tensors: dict[bytes, BundleEntry] = {}
    slices: dict[bytes, BundleEntry] = {}
    file = _file(root)
    for key, value in _entries(root, file):
        if not key:
            header = read_header(value, where)
        elif key.startswith(_SLICE):
            slices[key] = read_entry(value, "the entry of a slice", where)
        else:
            tensors[key] = read_entry(value, _text(key, where), where)
        if len(tensors) + len(slices) > MAX_LEAVES:
            raise FormatError(
                f"{where} has more than {MAX_LEAVES:,} tensors and slices, the most that are read"
            )
    if header is None:
        raise CorruptError(f"{where} is damaged: it has no header; restore the file from a copy")
    found = tuple(_with_slices(key, entry, slices, where) for key, entry in tensors.items())
    if slices:
        raise CorruptError(
            f"{where} is damaged: it has {len(slices)} slices of which no tensor tells; restore the file from a copy"
        )
    return BundleIndex(header, found, file.nbytes)


class EntrySizes(Struct, frozen=True):
    """The numbers and the sizes of the entries of an index.

    Attributes:
        tensors: the number of tensors, the header counted.
        slices: the number of slices.
        key_bytes, value_bytes: of the slices' entries together.
    """

    tensors: int
    slices: int
    key_bytes: int
    value_bytes: int


def entry_sizes(root: Location) -> EntrySizes:
    """The numbers of tensors and slices, and the sizes of their entries; none is parsed."""
    tensors = slices = key_bytes = value_bytes = 0
    for key, value in _entries(root, _file(root)):
        if key.startswith(_SLICE):
            slices += 1
            key_bytes += len(key)
            value_bytes += len(value)
        else:
            tensors += 1
    return EntrySizes(tensors, slices, key_bytes, value_bytes)


def _file(root: Location) -> FileStatus:
    index = index_of(root)
    found = index.status()
    if found is None or found.kind != "file":
        raise MissingError(
            f"{index} is not there; without it the data files of {root} cannot be read"
        )
    return found


def _entries(root: Location, found: FileStatus) -> Iterator[tuple[bytes, bytes]]:
    index = index_of(root)
    with closing(index.open(found.version)) as file:
        yield from entries(file, found.nbytes, str(index))


def _with_slices(
    key: bytes, entry: BundleEntry, slices: dict[bytes, BundleEntry], where: str
) -> IndexEntry:
    """The tensor with its slices, which are taken out of ``slices``."""
    name = _text(key, where)
    found = []
    for extents in entry.slices:
        own = slices.pop(slice_key(key, extents), None)
        if own is None:
            raise CorruptError(
                f"{where} is damaged: it has no entry for the slice {_shown(extents)} of {name!r}, or two; restore the file from a copy"
            )
        if own.dtype != entry.dtype or len(extents) != len(entry.shape):
            raise CorruptError(
                f"{where} is damaged: the slice {_shown(extents)} of {name!r} is not like the tensor; restore the file from a copy"
            )
        found.append(StoredSlice(extents, own))
    return IndexEntry(name, entry, tuple(found))


def _shown(extents: Extents) -> str:
    """The text by which SaveSliceInfo shows a slice: start and length of each dimension."""
    return ":".join("-" if length < 0 else f"{start},{length}" for start, length in extents)


def _text(key: bytes, where: str) -> str:
    try:
        name = key.decode()
    except UnicodeDecodeError:
        raise FormatError(
            f"{where}: the name {key[:80]!r} is not UTF-8, which no other format can hold"
        ) from None
    if len(name) > MAX_NAME_CHARACTERS:
        raise FormatError(
            f"{where}: the name {name[:80]!r}… has {len(name)} characters; at most {MAX_NAME_CHARACTERS} are read"
        )
    return name
