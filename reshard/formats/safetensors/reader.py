"""Reading safetensors: one file, Hugging Face shards with their index, and slices over files.

Opening reads the headers and the index only. A tensor's bytes lie in one piece of a file, row-major, without
checksums, so that the engine reads them in ranges.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from types import MappingProxyType

from reshard.arguments import Unlisted
from reshard.errors import CorruptError, FormatError, ReshardError
from reshard.formats.base import Chunks, Reader, RecordUse
from reshard.formats.codecs import read_ahead
from reshard.formats.contents import Container, Extent, Item, Leaf, PathKey, StoredTensor
from reshard.formats.safetensors.files import (
    Files,
    ModelName,
    files_of,
    is_named_index,
    name_of_files,
    name_of_index,
)
from reshard.formats.safetensors.header import HEADER_DIGEST, RECORD, FileHeader, tensor_count
from reshard.formats.safetensors.listed import read_headers
from reshard.formats.safetensors.model_folder import beside
from reshard.formats.safetensors.slices import DCP_SLICES, CutTensor, cut_tensors, holds_slices
from reshard.formats.slices.file_digests import check_digest
from reshard.formats.slices.kept_metadata import metadata_of_files
from reshard.formats.slices.parse import parse_slices, read_slices
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.slices.slice_file import (
    NOTHING,
    SliceEntry,
    SliceFile,
    check_record_fits,
    fitting_entry,
    recorded,
    recorded_path,
)
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Index
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.base import Store
from reshard.storage.calls import each_at_once
from reshard.storage.location import Location

FORMAT = "safetensors"

TENSOR_BYTES, TENSOR_DIMENSION_BYTES = 1000, 80
PIECE_BYTES, PIECE_DIMENSION_BYTES = 250, 20
"""Memory of an open tensor, of each of its pieces, and of a dimension of either, besides twice the header.

Upper bounds of what tracemalloc measures with CPython 3.11 on 20,000 whole tensors of different shapes and 8,000 pieces:
a whole tensor takes 1130 bytes as a scalar and 2085 with 32 dimensions, a tensor in 16 pieces 4050 with one dimension
and 10,250 with 32. Of 100,000 tensors with 2 dimensions and names of 40 characters, each takes 1105, names included.
"""

OPENED_TENSOR_BYTES = 1800
"""Memory of a tensor or a piece while it is opened; 1670 were measured with 4 dimensions, 1540 with one."""


def open_safetensors(
    root: Location, record: RecordUse = "checked", uri: str = "", unlisted: Unlisted = "leave"
) -> Reader:
    """Open a safetensors file or folder, or an index.

    Names are one key each, whatever dots they hold: the tree is flat, unless this project recorded another.

    Args:
        root: viewed as one checkpoint, so that its files are in it.
        record: the use of this project's record: refuse contradictions, use the parts that fit, or nothing.
        uri: the file or folder as the user named it.
        unlisted: the treatment of tensors and files that no index lists.

    Raises:
        StorageError: it is not there or cannot be read.
        CorruptError: a header is damaged; the index and the files, or pieces of a tensor, contradict each other.
        FormatError: it uses an unsupported feature.
    """
    uri = uri or str(root)
    files = files_of(root, unlisted)
    headers = read_headers(files, unlisted)
    cuts = cut_tensors(headers.all)
    known = read_record(files, headers.listed, record)
    if record == "checked":
        check_record(known, cuts, uri, headers.unlisted)
    header_bytes = sum(header.nbytes for header in headers.all)
    entries = [entry_of(cut, known) for cut in cuts]
    stored = {
        cut.name: _stored(cut, entry, root.store) for cut, entry in zip(cuts, entries, strict=True)
    }
    return Reader(
        uri=uri,
        format=FORMAT,
        container=Container(None, (Item("", "", is_tree=True),)),
        tensors=MappingProxyType(stored),
        leaves=tuple(map(_leaf, cuts, entries)),
        chunks=SafetensorsChunks(uri, cuts, _name_of(files, headers.all)),
        metadata_bytes=root.kept_bytes + 2 * header_bytes + sum(map(_memory, cuts)),
        conversion=known.conversion,
        made=known.made,
        warnings=(*headers.warnings, *lost_file_warnings(headers.all, cuts, known)),
        takes_record=root.is_folder(),  # a file by itself has no room for one
        metadata=metadata_of_files(
            [header.metadata for header in headers.all],
            {} if files.index is None else files.index.metadata,
            known.metadata,
        ),
    )


def _name_of(files: Files, headers: Sequence[FileHeader]) -> ModelName:
    """The names of the model's files, for a target of the same format. Files of slices have names of their own kind."""
    if any(map(holds_slices, headers)):
        return ModelName()
    if files.index is not None:
        return name_of_index(files.index.file.name)
    return name_of_files(file.name for file in files.files)


def leaf_count(root: Location) -> int:
    """An estimate of the tensors that the headers name, with those that no index lists; 0 if files cannot be found, which opening reports."""
    try:
        files = files_of(root, "include")
        return sum(each_at_once(root.store, tensor_count, (*files.files, *files.unlisted)))
    except ReshardError:
        return 0


class SafetensorsChunks(Chunks):
    """The bytes of an open safetensors checkpoint.

    Attributes:
        model_name: the names of the model's files.
    """

    def __init__(self, uri: str, cuts: Sequence[CutTensor], model_name: ModelName) -> None:
        self.model_name = model_name
        self._uri = uri
        self._chunks = {cut.name: cut.chunks for cut in cuts}
        self._copies = {cut.name: cut.copies for cut in cuts if cut.copies}

    def locate(self, name: str, index: Index) -> Extent:
        """The place of a chunk's elements: a range of one piece, or several pieces.

        Raises FormatError where there is no such tensor or chunk.
        """
        chunks = self._chunks.get(name)
        if chunks is None:
            raise FormatError(f"{self._uri} has no tensor named {name!r}")
        extent = chunks.locate(index)
        if extent is None:
            raise FormatError(f"{self._uri}: {name!r} has no chunk {list(index)}")
        return extent

    def copies(self, name: str) -> Sequence[tuple[Extent, ...]]:
        """The places of each slice that several files hold, as files of ranks do."""
        return self._copies.get(name, ())

    def folders_to_record(self, reader: Reader, root: Location) -> list[RecordedFolder]:
        """The folder, with the index and the files beside the weights; the digests of tensors cover the rest.

        Raises FormatError for a single file or an index.
        """
        if is_named_index(root):
            raise FormatError(
                f"{reader.uri} is an index, and a record of digests belongs to its folder; name the folder {root.parent}"
            )
        if not root.is_folder():
            raise FormatError(
                f"{reader.uri} is a single safetensors file, which has no room for a record of digests; put it into a folder and "
                "record that, or convert it, which records them; a file that reshard wrote has its record in the header"
            )
        names = [*beside(root).files]
        index = files_of(root).index
        if index is not None:
            names.append(index.file.name)
        tree = TensorTree(reader.leaves, reader.tensors)
        return [RecordedFolder("", tree, tuple(names), data_files=None)]


def _memory(cut: CutTensor) -> int:
    """The memory of an open tensor, without its name."""
    rank = len(cut.chunks.grid.shape)
    piece = PIECE_BYTES + PIECE_DIMENSION_BYTES * rank
    return TENSOR_BYTES + TENSOR_DIMENSION_BYTES * rank + piece * cut.pieces


def _leaf(cut: CutTensor, entry: SliceEntry | None) -> Leaf:
    if entry is None:
        return Leaf(cut.name, (PathKey(cut.name),))
    return Leaf(cut.name, recorded_path(entry))


def _stored(cut: CutTensor, entry: SliceEntry | None, store: Store) -> StoredTensor:
    grid = cut.chunks.grid
    layout, digest, partition = None, None, None
    if entry is not None:
        layout, digest, partition = entry.layout, entry.digest, entry.partition
    spec = TensorSpec(cut.name, grid.shape, cut.dtype, grid, layout=layout)
    fill = bytes(storage_bytes(cut.dtype))
    encoding = read_ahead(cut.chunks.encoding, store)
    return StoredTensor(spec, encoding, fill, False, digest, partition=partition)


_SHARD = re.compile(r"shard-([0-9]{1,9})-.*", re.DOTALL)


def read_record(files: Files, headers: Sequence[FileHeader], record: RecordUse) -> SliceFile:
    """The record of a checkpoint; an empty one where there is none, or none is wanted.

    Raises CorruptError for a record that is damaged, and for an index that is not the recorded one, where they are
    to be checked; and for a header of a conversion without its digest.
    """
    known = recorded(lambda: _with_index(files, headers, record), record)
    if known.conversion:
        _check_digests_there(headers)
    return known


def _with_index(files: Files, headers: Sequence[FileHeader], record: RecordUse) -> SliceFile | None:
    known = _found(files, headers)
    if known is not None and files.index and record == "checked":
        index = files.index
        digest = known.files.get(index.file.name, index.digest)
        check_digest(index.digest, digest, f"the index {index.file}")
    return known


def _check_digests_there(headers: Sequence[FileHeader]) -> None:
    """Every header of a conversion records its digest; without it, damage to the header would go unnoticed."""
    for header in headers:
        if HEADER_DIGEST not in header.metadata:
            raise CorruptError(
                f"the header of {header.path} records no digest of itself ({HEADER_DIGEST!r}), but reshard wrote one; restore "
                "the file from a copy, or remove the record if the files were changed on purpose"
            )


def _found(files: Files, headers: Sequence[FileHeader]) -> SliceFile | None:
    found = read_slices(files.folder) if files.folder is not None else None
    if found is not None or len(headers) != 1:
        return found
    (header,) = headers
    text = header.metadata.get(RECORD)
    return None if text is None else parse_slices(text.encode(), header.path)


def check_record(
    record: SliceFile, cuts: Sequence[CutTensor], path: str, unlisted: Collection[str] = ()
) -> None:
    """Raises CorruptError where the record does not describe the tensors of the checkpoint at ``path``.

    ``unlisted``: names of tensors that no index lists, and that were recorded only if they were taken then too.
    """
    if record is not NOTHING:
        stored = {cut.name: (cut.dtype, cut.chunks.grid.shape) for cut in cuts}
        check_record_fits(record, stored, path, unlisted)


def entry_of(cut: CutTensor, record: SliceFile) -> SliceEntry | None:
    """The recorded entry of a tensor, if it describes the tensor."""
    return fitting_entry(record, cut.name, cut.dtype, cut.chunks.grid.shape)


def lost_file_warnings(
    headers: Sequence[FileHeader], cuts: Sequence[CutTensor], record: SliceFile
) -> Iterator[str]:
    """Warnings about a file of torch's distributed checkpoint that may be lost, where the others prove nothing.

    torch names the files ``shard-RANK-model-I-of-N.safetensors`` and records where each piece begins. A rank that has nothing to
    write writes no file. So a lost last rank shows only where ``global_shape`` is recorded, or this project's own record.

    One sentence for tensors that may go on, and one for numbers that no file has.
    """
    files = [header.path.rpartition("/")[2] for header in headers if DCP_SLICES in header.metadata]
    if not files or record.tensors:
        return
    open_ended = [cut.name for cut in cuts if cut.may_go_on and entry_of(cut, record) is None]
    if open_ended:
        more = f" and {len(open_ended) - 1:,} more tensors" if open_ended[1:] else ""
        yield (
            f"{open_ended[0]!r}{more}: torch recorded where the parts begin, but no full shape, so that the last parts cannot be "
            f"proved to be there; compare the shapes with the model's, in case a file behind {max(files)} is lost"
        )
    yield from _gaps(files)


def _gaps(files: Sequence[str]) -> Iterator[str]:
    numbers = {int(match[1]) for name in files if (match := _SHARD.fullmatch(name)) is not None}
    missing = next((n for n in range(1, max(numbers, default=0)) if n not in numbers), None)
    if missing is not None:
        yield (
            f"no file is named shard-{missing:05d}-…, though files with higher numbers are there: rank {missing - 1} had nothing to "
            "write, or its file is lost"
        )
