"""Reading checkpoints of TensorFlow: ``tf.train.Checkpoint``, ``tf.train.Saver``, and the variables of a SavedModel.

Opening reads the index. A tensor lies in a data file, row-major, or its slices do, as a ShardedVariable or a partitioned variable was
saved: any boxes in any files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from reshard.checksums.tensor_digest import PieceCrcs
from reshard.errors import CorruptError, FormatError, LayoutError, ReshardError
from reshard.formats.base import Chunks, Reader, RecordUse
from reshard.formats.codecs import read_ahead
from reshard.formats.contents import (
    Carried,
    Container,
    Extent,
    Item,
    Leaf,
    PathKey,
    RawPiece,
    StoredTensor,
)
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.slices.parse import read_slice_file
from reshard.formats.slices.record_files import RecordedFolder
from reshard.formats.slices.slice_file import (
    NOTHING,
    SliceEntry,
    SliceFile,
    check_record_fits,
    fitting_entry,
    recorded,
    recorded_path,
)
from reshard.formats.tensorflow.files import FORMAT, RECORD, DataFile, data_files, index_of
from reshard.formats.tensorflow.index import (
    DTYPES,
    BundleEntry,
    Extents,
    IndexEntry,
    box_of,
    entry_sizes,
    read_index,
)
from reshard.formats.tensorflow.object_graph import OBJECT_GRAPH, paths_of
from reshard.formats.tensorflow.other_leaves import OtherLeaves, file_of
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box, Index
from reshard.geometry.tiling import check_tiling
from reshard.layout.partitioners import div_cuts
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.base import Store
from reshard.storage.location import Location

OPENED_TENSOR_BYTES = 2500
"""Memory of a tensor while it is opened."""

_SLICE_BYTES, _OF_VALUE = 600, 26
"""Memory of a slice while it is opened, and of each byte of its entry, which has some four for each dimension.

tracemalloc measures 940 with one dimension, 1060 with two, 1690 with eight, 2600 with 16 (CPython 3.11)."""


def open_tensorflow(root: Location, record: RecordUse = "checked", uri: str = "") -> Reader:
    """Open the checkpoint that a prefix names.

    Args:
        record: the use of this project's record beside it: refuse contradictions, use the parts that fit, or nothing.
        uri: the prefix as the user named it.

    Raises:
        StorageError: a file of it is not there or cannot be read.
        CorruptError: the index is damaged, or contradicts itself or the data files.
        FormatError: it uses an unsupported feature.
    """
    index = read_index(root)
    files = data_files(root, index.header.data_files)
    where = str(index_of(root))
    kept = [found for found in index.tensors if found.key != OBJECT_GRAPH]
    paths = paths_of(found.key for found in kept)
    known = recorded(lambda: read_slice_file(root.parent / f"{root.name}{RECORD}"), record)
    tensors: dict[str, StoredTensor] = {}
    chunks: dict[str, GatheredChunks] = {}
    leaves, others = [], OtherLeaves(files, where)
    graphs = [others.graph(found) for found in index.tensors if found.key == OBJECT_GRAPH]
    for found in kept:
        path = paths[found.key]
        name = "/".join(step.key for step in path)
        if found.entry.dtype in DTYPES:
            chunks[name] = _chunks(found, files, where)
            tensors[name] = _stored(name, found, chunks[name], root.store, known)
            leaves.append(Leaf(name, _path(path, known.tensors.get(name))))
        else:
            leaves.append(others.leaf(name, path, found))
    if record == "checked" and known is not NOTHING:
        described = {n: (t.spec.dtype, t.spec.shape) for n, t in tensors.items()}
        check_record_fits(known, described, uri or str(root))
    return Reader(
        uri=uri or str(root),
        format=FORMAT,
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=MappingProxyType(tensors),
        leaves=tuple(leaves),
        chunks=TensorflowChunks(chunks, *graphs, is_of_variables=not graphs),
        metadata_bytes=root.kept_bytes
        + 2 * index.nbytes
        + _memory(index.tensors)
        + others.memory_bytes,
        conversion=known.conversion,
        made=known.made,
        metadata=known.metadata,
    )


def leaf_count(root: Location) -> int:
    """The number of tensors that would take about the memory of its tensors and slices; 0 if it cannot be read, which opening it reports."""
    try:
        found = entry_sizes(root)
    except ReshardError:
        return 0
    of_slices = _SLICE_BYTES * found.slices + _OF_VALUE * found.value_bytes + found.key_bytes
    return found.tensors + -(-of_slices // OPENED_TENSOR_BYTES)


class TensorflowChunks(Chunks):
    """The bytes of an open checkpoint of TensorFlow.

    Attributes:
        graph: the place of the object graph, if a target may keep it.
        is_of_variables: True if names are those of variables: no graph tells of objects.
    """

    def __init__(
        self,
        chunks: Mapping[str, GatheredChunks],
        graph: Carried | None = None,
        *,
        is_of_variables: bool,
    ) -> None:
        self.graph = graph
        self.is_of_variables = is_of_variables
        self._chunks = chunks

    def locate(self, name: str, index: Index) -> Extent | None:
        """The place of a chunk's elements: a range of one slice, or several slices."""
        return self._chunks[name].locate(index)

    def folders_to_record(self, reader: Reader, _root: Location, /) -> list[RecordedFolder]:
        raise FormatError(
            f"{reader.uri} is the prefix of files in a folder that may have others, where no digests are recorded; convert it, which "
            "records them beside the target"
        )


def _memory(tensors: Sequence[IndexEntry]) -> int:
    """The memory of the open tensors and slices, without their names."""
    return sum(1500 + 400 * len(found.slices) for found in tensors)


def _path(path: tuple[PathKey, ...], entry: SliceEntry | None) -> tuple[PathKey, ...]:
    """A path with the positions of lists, which only the record tells from other keys."""
    is_same = entry is not None and entry.name == "/".join(step.key for step in path)
    return recorded_path(entry) if is_same and entry is not None else path


def _stored(
    name: str, found: IndexEntry, chunks: GatheredChunks, store: Store, known: SliceFile
) -> StoredTensor:
    dtype, shape = DTYPES[found.entry.dtype], found.entry.shape
    entry = fitting_entry(known, name, dtype, shape)
    layout, digest, partition = None, None, _partition(found)
    if entry is not None:
        layout, digest = entry.layout, entry.digest
        if layout is not None or entry.partition is not None:  # else slices that were kept
            partition = entry.partition
    spec = TensorSpec(name, shape, dtype, chunks.grid, layout=layout)
    encoding, fill = read_ahead(chunks.encoding, store), bytes(storage_bytes(dtype))
    return StoredTensor(
        spec, encoding, fill, False, digest, partition=partition, crcs=_crcs(found, fill)
    )


def _crcs(found: IndexEntry, element: bytes) -> PieceCrcs:
    shape = found.entry.shape
    boxes = [box_of(one.extents, shape) for one in found.slices] or [Box.full(shape)]
    crcs = [one.entry.crc32c for one in found.slices] or [found.entry.crc32c]
    return PieceCrcs.of(boxes, crcs, len(element))


def _partition(found: IndexEntry) -> Mapping[str, Any] | None:
    """Slices as a ShardedVariable has them, even parts along one dimension, so that a target has them too; None for others."""
    shape, count = found.entry.shape, len(found.slices)
    boxes = [box_of(one.extents, shape) for one in found.slices]
    split = [dim for dim, size in enumerate(shape) if any(box.shape[dim] != size for box in boxes)]
    if len(split) != 1:
        return None
    (axis,) = split
    cuts = sorted({box.start[axis] for box in boxes} | {shape[axis]})
    if count != len(cuts) - 1 or tuple(cuts) != tuple(div_cuts(shape[axis], count)):
        return None
    return {"strategy": "fixed_shards", "axis": axis, "shards": count}


def _chunks(found: IndexEntry, files: Sequence[DataFile], where: str) -> GatheredChunks:
    """The chunks of a tensor. Raises CorruptError for slices that do not tile it, and for bytes that are not there."""
    shape, itemsize = found.entry.shape, storage_bytes(DTYPES[found.entry.dtype])
    if not found.slices:
        pieces = [_piece(found.key, Box.full(shape), found.entry, files, where)]
        return gathered_chunks(shape, itemsize, pieces)
    extents: list[Extents] = [one.extents for one in found.slices]
    boxes = [box_of(one, shape) for one in extents]
    try:
        check_tiling(found.key, shape, boxes)
    except LayoutError as error:
        raise CorruptError(f"{where}: {error}") from None
    pieces = [
        _piece(found.key, box, one.entry, files, where)
        for box, one in zip(boxes, found.slices, strict=True)
    ]
    return gathered_chunks(shape, itemsize, pieces)


def _piece(
    key: str, box: Box, entry: BundleEntry, files: Sequence[DataFile], where: str
) -> RawPiece:
    nbytes = box.size * storage_bytes(DTYPES[entry.dtype])
    if nbytes != entry.nbytes:
        raise CorruptError(
            f"{where}: {key!r} of {DTYPES[entry.dtype]} at {box} takes {nbytes} bytes, but {entry.nbytes} are stored; restore the checkpoint "
            "from a copy"
        )
    file = file_of(key, entry, files, where)
    return RawPiece(box, file.path, entry.offset, version=file.found.version)
