"""A tensor of a distributed checkpoint of torch as chunks: its pieces, each with the file, the place, the order and the CRC of its elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, LayoutError
from reshard.formats.contents import Extent, RawPiece
from reshard.formats.dcp.entries import ItemPlace, TensorEntry, TensorPiece
from reshard.formats.dcp.items import StoredItem
from reshard.formats.limits import MAX_TENSOR_BYTES
from reshard.formats.loose_pieces import GatheredChunks, gathered_chunks
from reshard.formats.torch.record_crcs import RecordCrcs
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.tiling import check_tiling

Items = Mapping[ItemPlace, StoredItem]


class TiledTensor(Struct, frozen=True):
    """A tensor as chunks.

    Attributes:
        copies: the places of each piece that several ranks stored alike.
        crcs: CRC-32s of its pieces; None where one is not recorded.
    """

    dtype: str
    chunks: GatheredChunks
    copies: tuple[tuple[Extent, ...], ...]
    crcs: RecordCrcs | None


def tiled_tensor(entry: TensorEntry, items: Items, where: str) -> TiledTensor:
    """The chunks of a tensor; ``items``: the stored item at each place of a piece that is not empty.

    Raises CorruptError where pieces overlap, leave a hole, or contradict the metadata.
    """
    itemsize = storage_bytes(entry.dtype)
    if math.prod(entry.shape) * itemsize > MAX_TENSOR_BYTES:
        raise FormatError(f"{where}: {entry.name!r} has more than 2^62 bytes")
    _check_tiled(entry, where)
    pieces = [_raw(piece, piece.places[0], entry, items) for piece in filled(entry)]
    crcs = RecordCrcs.of(pieces, [items[p.places[0]].crc for p in filled(entry)], itemsize)
    chunks = gathered_chunks(entry.shape, itemsize, pieces)
    return TiledTensor(entry.dtype, chunks, tuple(_copies(entry, items, itemsize)), crcs)


def filled(entry: TensorEntry) -> list[TensorPiece]:
    """The pieces that have elements."""
    return [piece for piece in entry.pieces if piece.box.size]


def _check_tiled(entry: TensorEntry, where: str) -> None:
    files = {piece.box: piece.places[0].file for piece in entry.pieces}
    try:
        check_tiling(entry.name, entry.shape, list(files), lambda box: f"{box} of {files[box]}")
    except LayoutError as error:
        raise CorruptError(f"{where}: {error}") from None


def _raw(piece: TensorPiece, place: ItemPlace, entry: TensorEntry, items: Items) -> RawPiece:
    stored = items[place]
    tensor = stored.tensor
    if (tensor.dtype, tensor.shape) != (entry.dtype, piece.box.shape):
        raise CorruptError(
            f"{stored.path}: the piece {piece.box} of {entry.name!r} should be {entry.dtype} of shape {list(piece.box.shape)}, but is "
            f"{tensor.dtype} of shape {list(tensor.shape)}; the files are not of one checkpoint"
        )
    return RawPiece(
        piece.box, stored.path, stored.offset, tensor.order, stored.version, tensor.strides
    )


def _copies(entry: TensorEntry, items: Items, itemsize: int) -> list[tuple[Extent, ...]]:
    return [
        same
        for piece in filled(entry)
        if len(same := _alike(piece, [_raw(piece, p, entry, items) for p in piece.places], itemsize)) > 1
    ]  # fmt: skip


def _alike(piece: TensorPiece, raw: Sequence[RawPiece], itemsize: int) -> tuple[Extent, ...]:
    """The places that have the elements in the order of the first, without gaps: only those can be compared byte by byte."""
    nbytes = piece.box.size * itemsize
    return tuple(
        Extent(one.path, one.offset, nbytes, version=one.version)
        for one in raw
        if one.order == raw[0].order and not one.strides
    )
