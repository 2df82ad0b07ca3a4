"""The slices of full tensors that pieces are, by the metadata of safetensors files.

Two writers cut tensors over files, and both record in ``__metadata__`` the place of a piece:

- this project: ``reshard.slices``, JSON with the full shape and the offset of each piece, and the number and the count
  of files;
- torch's distributed checkpoint (``HuggingFaceStorageWriter(save_distributed=True)``): ``DCP_SHARDING_INFO``, JSON with
  ``saved_offsets``, and in later versions ``global_shape``, the full shape. Without that the full shape is where the last
  piece ends, so that a lost last file cannot be noticed (``reader.lost_file_warnings`` says so).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, LayoutError
from reshard.formats.contents import Extent, RawPiece
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.safe_json import expect, expect_sizes, json_value
from reshard.formats.safetensors.header import FileHeader, StoredPiece, element_shape, read_header
from reshard.geometry.grid import Box
from reshard.geometry.tiling import check_tiling
from reshard.storage.location import Location

RESHARD_SLICES = "reshard.slices"
DCP_SLICES = "DCP_SHARDING_INFO"


class CutTensor(Struct, frozen=True):
    """A tensor and the chunks that its pieces make.

    Attributes:
        pieces: the number of its pieces.
        copies: the places of each slice that several files hold; the first of them is read.
        may_go_on: True if the full shape is known only from the end of the last piece.
    """

    name: str
    dtype: str
    chunks: GatheredChunks
    pieces: int = 1
    copies: tuple[tuple[Extent, ...], ...] = ()
    may_go_on: bool = False


class FileSlice(Struct, frozen=True):
    """A piece, its offset in the full tensor, and the full shape where it is recorded."""

    piece: StoredPiece
    offset: tuple[int, ...]
    full_shape: tuple[int, ...] | None

    @property
    def box(self) -> Box:
        """Its box in the full tensor; its offset has as many dimensions as its shape."""
        stop = [a + n for a, n in zip(self.offset, self.piece.shape, strict=True)]
        return Box(self.offset, tuple(stop))


class _File(Struct, frozen=True):
    """The record of a file about its slices.

    Attributes:
        number, count: its own number, and that of all files; None where it does not say.
        conversion: the conversion that wrote it; "" where it does not say.
    """

    path: str
    slices: Mapping[str, FileSlice]
    number: int | None = None
    count: int | None = None
    conversion: str = ""


def cut_tensors(headers: Sequence[FileHeader]) -> list[CutTensor]:
    """The tensors of files that belong together, in the order of their first pieces.

    Raises CorruptError, naming tensor and files, for a tensor that is whole in two files, for pieces that leave a hole
    or overlap, for a missing file, and for files of different checkpoints.
    """
    files = [_recorded(header) for header in headers]
    _check_all_there(files)
    slices: dict[str, list[FileSlice]] = defaultdict(list)
    whole: dict[str, StoredPiece] = {}
    for header, file in zip(headers, files, strict=True):
        for piece in header.pieces:
            if piece.name in file.slices:
                slices[piece.name].append(file.slices[piece.name])
            else:
                _refuse_second(piece, whole.get(piece.name))
                whole[piece.name] = piece
    _refuse_both(slices, whole)
    made = {name: _whole(piece) for name, piece in whole.items()}
    made |= {name: _cut(name, found) for name, found in slices.items()}
    order = dict.fromkeys(piece.name for header in headers for piece in header.pieces)
    return [made[name] for name in order]


def holds_slices(header: FileHeader) -> bool:
    """True if a file says that it holds slices of tensors."""
    return RESHARD_SLICES in header.metadata or DCP_SLICES in header.metadata


def slices_of(file: Location) -> tuple[FileHeader, Mapping[str, FileSlice]]:
    """The header of a file, and the slices that it records, by tensor; errors as for ``read_header``."""
    header = read_header(file)
    return header, _recorded(header).slices


def _refuse_second(piece: StoredPiece, first: StoredPiece | None) -> None:
    if first is not None:
        raise CorruptError(
            f"tensor {piece.name!r} is in {first.path} and in {piece.path}, and neither says that it is a slice. If they "
            "are two models, name one of the files, or the index of one; if each is the part of one rank, keep both, and let the "
            "program that wrote them join them: nothing in them says where the parts belong"
        )


def _whole(piece: StoredPiece) -> CutTensor:
    raw = RawPiece(Box.full(piece.shape), piece.path, piece.offset, version=piece.version)
    return CutTensor(piece.name, piece.dtype, gathered_chunks(piece.shape, piece.itemsize, [raw]))


def _recorded(header: FileHeader) -> _File:
    """The slices that a file records; none where it has no record."""
    pieces = {piece.name: piece for piece in header.pieces}
    if RESHARD_SLICES in header.metadata:
        return _reshard_slices(header, pieces)
    if DCP_SLICES in header.metadata:
        return _dcp_slices(header, pieces)
    return _File(header.path, {})


def _reshard_slices(header: FileHeader, pieces: Mapping[str, StoredPiece]) -> _File:
    where = f"{RESHARD_SLICES} in the header of {header.path}"
    document = _document(header, RESHARD_SLICES, where)
    if document.get("version") != 1:
        raise FormatError(
            f"{where} has the version {document.get('version')!r}; this version of reshard reads version 1"
        )
    found: dict[str, FileSlice] = {}
    for name, entry in expect(document.get("tensors"), dict, "tensors", where).items():
        what = f"the slice of {name[:200]!r}"
        members = expect(entry, dict, what, where)
        offset = expect_sizes(members.get("offset"), f"the offset of {what}", where)
        shape = expect_sizes(members.get("full_shape"), f"the full shape of {what}", where)
        piece = _listed(name, pieces, where)
        offset = element_shape(piece.dtype, offset, f"{where}: the offset of {what}")
        shape = element_shape(piece.dtype, shape, f"{where}: the full shape of {what}")
        found[name] = FileSlice(piece, offset, shape)
    number = expect(document.get("shard"), int, "shard", where)
    count = expect(document.get("shards"), int, "shards", where)
    conversion = expect(document.get("conversion", ""), str, "conversion", where)
    return _File(header.path, found, number, count, conversion)


def _dcp_slices(header: FileHeader, pieces: Mapping[str, StoredPiece]) -> _File:
    where = f"{DCP_SLICES} in the header of {header.path}"
    found: dict[str, FileSlice] = {}
    for name, entry in _document(header, DCP_SLICES, where).items():
        what = f"the entry of {name[:200]!r}"
        members = expect(entry, dict, what, where)
        offsets = expect_sizes(members.get("saved_offsets"), f"saved_offsets of {what}", where)
        shape = members.get("global_shape")
        full = None if shape is None else expect_sizes(shape, f"global_shape of {what}", where)
        piece = _listed(name, pieces, where)
        offsets = element_shape(piece.dtype, offsets, f"{where}: saved_offsets of {what}")
        full = (
            None
            if full is None
            else element_shape(piece.dtype, full, f"{where}: global_shape of {what}")
        )
        found[name] = FileSlice(piece, offsets, full)
    return _File(header.path, found)


def _document(header: FileHeader, key: str, where: str) -> dict[str, Any]:
    return expect(json_value(header.metadata[key].encode(), where), dict, "it", where)


def _listed(name: str, pieces: Mapping[str, StoredPiece], where: str) -> StoredPiece:
    if name not in pieces:
        raise CorruptError(f"{where} tells of {name[:200]!r}, which the file does not hold")
    return pieces[name]


def _cut(name: str, slices: Sequence[FileSlice]) -> CutTensor:
    full = _full_shape(name, slices)
    pieces = _pieces(name, slices, full)
    files = {piece.box: piece.path for piece in pieces}
    try:
        check_tiling(name, full, list(files), lambda box: f"{box} of {files[box]}")
    except LayoutError as error:
        raise CorruptError(f"{error} (pieces in {_paths(slices)})") from None
    first = slices[0].piece
    chunks = gathered_chunks(full, first.itemsize, pieces)
    may_go_on = bool(full) and all(one.full_shape is None for one in slices)
    return CutTensor(name, first.dtype, chunks, len(slices), _copies(slices), may_go_on)


def _refuse_both(
    slices: Mapping[str, Sequence[FileSlice]], whole: Mapping[str, StoredPiece]
) -> None:
    for name in slices.keys() & whole.keys():
        first = slices[name][0].piece
        raise CorruptError(
            f"tensor {name!r} is a slice in {first.path}, but {whole[name].path} holds it without saying where it "
            "belongs; the files are not of one checkpoint"
        )


def _refuse_unlike(name: str, slices: Sequence[FileSlice]) -> None:
    first = slices[0]
    for other in slices:
        if len(other.offset) != len(other.piece.shape) or other.piece.dtype != first.piece.dtype:
            raise CorruptError(
                f"tensor {name!r}: {first.piece.path} holds {_text(first)}, {other.piece.path} {_text(other)}; the "
                "files are not of one checkpoint"
            )


def _full_shape(name: str, slices: Sequence[FileSlice]) -> tuple[int, ...]:
    """The shape that the files record, or else the one that the slices fill."""
    _refuse_unlike(name, slices)
    shapes = {one.full_shape for one in slices} - {None} or {None}
    if len(shapes) > 1 or len({len(one.offset) for one in slices}) > 1:
        raise CorruptError(
            f"tensor {name!r} has the full shapes {sorted(map(str, shapes))} in {_paths(slices)}; the files are not of "
            "one checkpoint"
        )
    (recorded,) = shapes
    if recorded is not None:
        return recorded
    ends = [[a + n for a, n in zip(s.offset, s.piece.shape, strict=True)] for s in slices]
    return tuple(map(max, *ends)) if len(ends) > 1 else tuple(ends[0])


def _pieces(name: str, slices: Sequence[FileSlice], full: tuple[int, ...]) -> list[RawPiece]:
    """The pieces; of a box that several files hold, replicas, the first is read."""
    pieces: dict[Box, RawPiece] = {}
    for one in slices:
        if len(one.offset) != len(full):
            raise CorruptError(
                f"tensor {name!r} has the full shape {list(full)}, but {one.piece.path} holds a slice of it with "
                f"{len(one.offset)} dimensions"
            )
        raw = RawPiece(one.box, one.piece.path, one.piece.offset, version=one.piece.version)
        pieces.setdefault(raw.box, raw)
    return list(pieces.values())


def _copies(slices: Sequence[FileSlice]) -> tuple[tuple[Extent, ...], ...]:
    places: dict[tuple[int, ...], list[Extent]] = defaultdict(list)
    for one in slices:
        piece = one.piece
        extent = Extent(piece.path, piece.offset, piece.nbytes, version=piece.version)
        places[one.offset].append(extent)
    return tuple(tuple(found) for found in places.values() if len(found) > 1 and found[0].length)


def _check_all_there(files: Sequence[_File]) -> None:
    """Raises CorruptError for lost files and files of several checkpoints: each file of this project records its number and their count."""
    numbered = [file for file in files if file.count is not None]
    counts = sorted({file.count for file in numbered if file.count is not None})
    if len(counts) > 1:
        raise CorruptError(
            f"{numbered[0].path} and the files beside it are of {' and '.join(map(str, counts))} shards; the files are "
            "not of one checkpoint"
        )
    first = {file.conversion: file for file in reversed(numbered)}
    if len(first) > 1:
        one, other = list(first.values())[:2]
        raise CorruptError(
            f"{other.path} and {one.path} were written by two conversions; keep the files of one of them in this folder"
        )
    there = {file.number for file in numbered}
    lost = next((number for number in range(*counts or (0,)) if number not in there), None)
    if lost is not None:
        raise CorruptError(
            f"{numbered[0].path} and the files beside it are {len(there)} of {counts[0]} shards; shard {lost} is missing"
        )


def _text(one: FileSlice) -> str:
    return f"{one.piece.dtype} {list(one.piece.shape)} at {list(one.offset)}"


def _paths(slices: Iterable[FileSlice]) -> str:
    paths = list(dict.fromkeys(one.piece.path for one in slices))
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
