"""A format of one zip archive, whose entries are stored as they are: ``tensors.zip`` beside ``slices.json``.

The CRC-32 of an entry follows its data, and stands in the central directory at the end, so that the file has bytes between
chunks and behind them that depend on the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from io import BytesIO
from struct import pack
from typing import Any, ClassVar
from zipfile import ZipFile

from msgspec import Struct
from msgspec.structs import replace

from reshard.checksums.crc import CRC32
from reshard.errors import CorruptError
from reshard.formats.base import Chunks, Form, Reader, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.chunking import contiguous_grid
from reshard.formats.contents import Container, Extent, Item, Leaf, PathKey, RawPiece, StoredTensor
from reshard.formats.file_map import (
    ChunkChecksum,
    FileMap,
    Insert,
    Place,
    SharedFile,
    StoredRanges,
)
from reshard.formats.format import About, Format, Mark, Opening, PlaceNames
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import SliceFile, render_slices, target_entry
from reshard.geometry.grid import Box, Grid, Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

FILE = "tensors.zip"
CHUNK_BYTES = 4096
_DEFERRED_UTF8 = 0x0808
"""Flags: the CRC-32 follows the data; the name is UTF-8."""

_LOCAL, _DESCRIPTOR, _CENTRAL, _END = b"PK\3\4", b"PK\7\b", b"PK\1\2", b"PK\5\6"
_DATE = 0x0021
"""1980-01-01, the first day that the format knows."""


class Entry(Struct, frozen=True):
    """A tensor in the archive.

    Attributes:
        at: offset of its header.
    """

    name: str
    at: int
    nbytes: int

    @property
    def header(self) -> bytes:
        name = self.name.encode()
        fields = pack("<5H3I2H", 20, _DEFERRED_UTF8, 0, 0, _DATE, 0, 0, 0, len(name), 0)
        return _LOCAL + fields + name

    @property
    def start(self) -> int:
        """Offset of its data."""
        return self.at + len(self.header)

    @property
    def end(self) -> int:
        """Offset behind its descriptor."""
        return self.start + self.nbytes + 16

    def descriptor(self, stored: StoredRanges) -> bytes:
        crc = stored.crc(self.start, self.nbytes)
        return _DESCRIPTOR + pack("<3I", crc, self.nbytes, self.nbytes)

    def central(self, stored: StoredRanges) -> bytes:
        name, crc = self.name.encode(), stored.crc(self.start, self.nbytes)
        sizes = (crc, self.nbytes, self.nbytes)
        fields = pack("<6H3I", 20, 20, _DEFERRED_UTF8, 0, 0, _DATE, *sizes)
        return _CENTRAL + fields + pack("<5H2I", len(name), 0, 0, 0, 0, 0, self.at) + name


def _joined(pieces: tuple[bytes | Callable[[StoredRanges], bytes], ...], of: StoredRanges) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else piece(of) for piece in pieces)


def _directory(entries: tuple[Entry, ...], stored: StoredRanges) -> bytes:
    central = b"".join(entry.central(stored) for entry in entries)
    counts = (0, 0, len(entries), len(entries))
    return central + _END + pack("<4H2IH", *counts, len(central), entries[-1].end, 0)


def archive(entries: tuple[Entry, ...]) -> SharedFile:
    """The archive before any data is known."""
    head, inserts, pieces, begin = b"", [], list[Any](), 0
    for entry in entries:
        pieces.append(entry.header)
        if entry.nbytes:
            make, nbytes = partial(_joined, tuple(pieces)), entry.start - begin
            if begin:
                inserts.append(Insert(begin, nbytes, make))
            else:
                head = make(StoredRanges(CRC32))
            pieces, begin = [], entry.start + entry.nbytes
        pieces.append(entry.descriptor)
    pieces.append(partial(_directory, entries))
    names = sum(46 + len(entry.name.encode()) for entry in entries)
    nbytes = entries[-1].end + names + 22
    inserts.append(Insert(begin, nbytes - begin, partial(_joined, tuple(pieces))))
    return SharedFile(head, nbytes, tuple(inserts), CRC32)


def plan_archive(target: TargetCheckpoint) -> FileMap:
    """The files of a target."""
    entries: dict[str, Entry] = {}
    at = 0
    for name, tensor in target.tensors.items():
        entries[name] = Entry(name, at, tensor.spec.nbytes)
        at = entries[name].end

    def places(name: str, index: Index) -> tuple[Place, ...]:
        spec, element = target.tensors[name].spec, 0
        for first, size in zip(spec.storage.box(index).start, spec.shape, strict=True):
            element = element * size + first
        return (Place(FILE, entries[name].start + element * spec.itemsize),)

    def finish(
        root: Location, digests: Mapping[str, str], _: Iterable[ChunkChecksum]
    ) -> Mapping[str, bytes]:
        recorded = {
            name: target_entry((name,), tensor, digests.get(name))
            for name, tensor in target.tensors.items()
        }
        record = SliceFile(recorded, conversion=target.conversion, made=target.made)
        (root / "slices.json").write(render_slices(record))
        return {}

    return FileMap(
        places=places,
        finish=finish,
        shared=(FILE,),
        shared_file=lambda _: archive(tuple(entries.values())),
    )


class ArchiveChunks(Chunks):
    def __init__(self, chunks: Mapping[str, GatheredChunks]) -> None:
        self._chunks = chunks

    def locate(self, name: str, index: Index) -> Extent | None:
        return self._chunks[name].locate(index)


class ArchiveForm(Form, frozen=True):
    format: ClassVar[str] = "archive"

    def arrange(self, given: Unarranged) -> TargetTensor:
        tensor, whole = given.tensor, Grid.whole(given.tensor.spec.shape)
        storage = contiguous_grid(whole, tensor.spec.itemsize, CHUNK_BYTES)
        return replace(tensor, spec=replace(tensor.spec, storage=storage), packed=whole)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        return plan_archive(target)

    def warnings(self, _target: TargetCheckpoint, _source: Reader, /) -> Iterator[str]:
        yield "an archive of tests is nothing that other programs know"


def recognise(names: PlaceNames) -> Mark | None:
    return Mark(leaves=lambda _: 1) if FILE in names.files else None


def open_archive(root: Location, how: Opening) -> Reader:
    known, file = read_slices(root), root / FILE
    found = file.status()
    if known is None or found is None:
        raise CorruptError(f"{root} has no slices.json; restore it from a copy")
    with closing(file.open(found.version)) as opened:
        data = opened.read(0, found.nbytes)
    chunks, tensors = {}, {}
    for info in ZipFile(BytesIO(data)).infolist():
        entry = known.tensors[info.filename]
        start = info.header_offset + 30 + len(info.filename.encode())
        piece = RawPiece(Box.full(entry.shape), str(file), start, (), found.version)
        spec = TensorSpec(info.filename, entry.shape, entry.dtype, Grid.whole(entry.shape))
        held = chunks[spec.name] = gathered_chunks(spec.shape, spec.itemsize, [piece])
        spec = replace(spec, storage=held.grid, layout=entry.layout)
        fill, digest = bytes(spec.itemsize), entry.digest
        tensors[spec.name] = StoredTensor(spec, held.encoding, fill, False, digest)
    return Reader(
        uri=how.uri or str(root),
        format="archive",
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=tensors,
        leaves=tuple(Leaf(name, (PathKey(name),)) for name in tensors),
        chunks=ArchiveChunks(chunks),
        metadata_bytes=2000 * len(tensors),
        conversion=known.conversion,
        made=known.made,
    )


ARCHIVE = Format(
    about=About(
        name="archive",
        title="archive",
        marks=f"archive ({FILE})",
        leaf_bytes=4000,
        tensors_only=True,
    ),
    recognise=recognise,
    open=open_archive,
    write=lambda _, __: ArchiveForm(),
)
"""For ``monkeypatch.setattr("reshard.formats.known_formats.FORMATS", …)``."""
