"""Reading weights of Keras 3, and other HDF5 files of arrays.

Opening reads the metadata with h5py. A tensor's bytes lie in one piece of the file, row-major, without checksums, so that the engine
reads them in ranges; or in chunks, which other programs write, and which it reads where they are. Names are the paths in the file, such as
``layers/dense/vars/0``, ``optimizer/vars/1`` among them.

This project records the text that is ``slices.json`` in a folder as a dataset of that name: an array of bytes at the top of the
file. Keras loads by name, and does not look at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import FormatError, ReshardError
from reshard.formats.base import Chunks, Reader, RecordUse
from reshard.formats.codecs import read_ahead
from reshard.formats.contents import (
    Container,
    Encoding,
    Extent,
    Item,
    Leaf,
    PathKey,
    RawPiece,
    StoredTensor,
)
from reshard.formats.keras.chunks import REPACK, ChunkTable
from reshard.formats.keras.datasets import Dataset, left_out_attributes, read_datasets, walk
from reshard.formats.keras.files import is_shard, opened_hdf5
from reshard.formats.limits import MAX_JSON_BYTES
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.slices.parse import parse_slices
from reshard.formats.slices.record_files import RecordedFolder
from reshard.formats.slices.slice_file import (
    FILE_NAME,
    NOTHING,
    SliceEntry,
    SliceFile,
    check_record_fits,
    fitting_entry,
    recorded,
    recorded_path,
)
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box, Grid, Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

FORMAT = "keras"

TENSOR_BYTES = 2500
"""Memory of an open tensor, without its name."""

OPENED_TENSOR_BYTES = 4000
"""Memory of a tensor while it is opened: HDF5 keeps the file's metadata that it has read."""


def open_keras(root: Location, record: RecordUse = "checked", uri: str = "") -> Reader:
    """Opens a file of weights.

    Args:
        record: the use of this project's record in it: refuse contradictions, use the parts that fit, or nothing.
        uri: the file as the user named it.

    Raises:
        MissingPackageError: h5py is not installed.
        StorageError: the file is not there or cannot be read.
        CorruptError: it is damaged, or contradicts itself.
        FormatError: it uses an unsupported feature.
    """
    uri = uri or str(root)
    found = root.status()
    nbytes, version = (found.nbytes, found.version) if found is not None else (0, "")
    with opened_hdf5(root) as file:
        datasets = read_datasets(file, str(root), nbytes)
        left_out = tuple(left_out_attributes(file, uri))
    known = read_record(datasets, root, version, record)
    arrays = [one for one in datasets if not is_record(one)]
    if record == "checked" and known is not NOTHING:
        check_record_fits(known, {one.name: (one.dtype, one.shape) for one in arrays}, uri)
    chunks = {one.name: _chunks(one, root, version) for one in arrays}
    tensors = {one.name: _stored(one, chunks[one.name], known, root) for one in arrays}
    return Reader(
        uri=uri,
        format=FORMAT,
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=MappingProxyType(tensors),
        leaves=tuple(_leaf(one.name, known.tensors.get(one.name)) for one in arrays),
        chunks=KerasChunks(uri, chunks),
        metadata_bytes=root.kept_bytes
        + sum(TENSOR_BYTES + 2 * len(name) for name in tensors)
        + sum(one.chunks.memory_bytes for one in arrays if one.chunks),
        conversion=known.conversion,
        made=known.made,
        metadata=replace(known.metadata, left_out=(*known.metadata.left_out, *left_out)),
        warnings=tuple(_warnings(root, known)),
    )


def leaf_count(root: Location) -> int:
    """The number of datasets in a file; 0 if it cannot be read, which opening it reports."""
    try:
        with opened_hdf5(root) as file:
            return sum(1 for _ in walk(file, str(root)))
    except ReshardError:
        return 0


class KerasChunks(Chunks):
    """The bytes of an open file of weights."""

    def __init__(self, uri: str, chunks: Mapping[str, GatheredChunks | _TableChunks]) -> None:
        self._uri = uri
        self._chunks = chunks

    def locate(self, name: str, index: Index) -> Extent | None:
        """The range of the file that holds the elements. Raises FormatError where there is no such tensor."""
        if name not in self._chunks:
            raise FormatError(f"{self._uri} has no tensor named {name!r}")
        return self._chunks[name].locate(index)

    def folders_to_record(self, reader: Reader, root: Location) -> list[RecordedFolder]:
        raise FormatError(
            f"{reader.uri} is a single HDF5 file, which has no room for a record of digests; convert {root.name}, which records them"
        )


class _TableChunks(Struct, frozen=True):
    """The chunks of a tensor that HDF5 stores in chunks, all in one file."""

    table: ChunkTable
    path: str
    version: str

    @property
    def grid(self) -> Grid:
        return self.table.grid

    @property
    def encoding(self) -> Encoding:
        return self.table.encoding

    def locate(self, index: Index) -> Extent:
        offset, length = self.table.place(index)
        return Extent(self.path, offset, length, version=self.version)


def _chunks(dataset: Dataset, root: Location, version: str) -> GatheredChunks | _TableChunks:
    if dataset.chunks is not None:
        return _TableChunks(dataset.chunks, str(root), version)
    shape, pieces = dataset.shape, []
    if dataset.offset is not None:
        pieces = [RawPiece(Box.full(shape), str(root), dataset.offset, version=version)]
    return gathered_chunks(shape, storage_bytes(dataset.dtype), pieces)


def _stored(
    dataset: Dataset, chunks: GatheredChunks | _TableChunks, known: SliceFile, root: Location
) -> StoredTensor:
    entry = fitting_entry(known, dataset.name, dataset.dtype, dataset.shape)
    layout, digest, partition = None, None, None
    if entry is not None:
        layout, digest, partition = entry.layout, entry.digest, entry.partition
    padded = None if dataset.chunks is None else dataset.chunks.shape
    spec = TensorSpec(dataset.name, dataset.shape, dataset.dtype, chunks.grid, padded, layout)
    encoding, fill = read_ahead(chunks.encoding, root.store), bytes(storage_bytes(dataset.dtype))
    return StoredTensor(spec, encoding, fill, False, digest, partition=partition)


def _leaf(name: str, entry: SliceEntry | None) -> Leaf:
    """A leaf with the keys that were recorded, which may have slashes or be positions of lists; else those of the path in the file."""
    if entry is None or entry.name != name:
        return Leaf(name, tuple(map(PathKey, name.split("/"))))
    return Leaf(name, recorded_path(entry))


def _warnings(root: Location, known: SliceFile) -> Iterator[str]:
    if is_shard(root.name) and known is NOTHING:
        yield (
            f"{root.name!r} has the name of one of several files of a model, which Keras lists in a .weights.json; the others are not read"
        )


NAME = FILE_NAME


def is_record(dataset: Dataset) -> bool:
    """True if a dataset is the record, and no tensor."""
    return dataset.name == NAME and dataset.dtype == "uint8" and len(dataset.shape) == 1


def read_record(
    datasets: Sequence[Dataset], file: Location, version: str, record: RecordUse
) -> SliceFile:
    """The record in a file; an empty one where there is none, or none is wanted.

    Raises CorruptError for a damaged one that is to be checked.
    """
    found = next(filter(is_record, datasets), None)

    def read() -> SliceFile | None:
        if found is None:
            return None
        if found.chunks is not None:
            raise FormatError(
                f"{file}: {NAME!r} is stored in chunks, and a record is not; {REPACK}"
            )
        if found.offset is None or found.nbytes > MAX_JSON_BYTES:
            raise FormatError(f"{file}: {NAME!r} has {found.nbytes:,} bytes, which is no record")
        with closing(file.open(version)) as opened:
            return parse_slices(opened.read(found.offset, found.nbytes), f"{NAME} in {file}")

    return recorded(read, record)
