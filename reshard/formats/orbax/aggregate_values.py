"""Values kept in the file ``checkpoint``, as arrays that the rest of the project reads like any other.

The bytes of arrays stay in the file, and are read from there. Numbers are kept in memory as the bytes of an element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reshard.formats.contents import Encoding, Extent, Pieces, RawPiece
from reshard.formats.msgpack.arrays import ArrayBytes
from reshard.formats.msgpack.tree import Value
from reshard.formats.orbax.aggregate_file import Aggregate
from reshard.formats.orbax.find_arrays import ArrayFiles
from reshard.formats.python_numbers import element_of
from reshard.formats.zarr.metadata import ZarrArray
from reshard.geometry.box import Box
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.row_major import run_boxes

_EXTENT_BYTES = 220
"""Memory of an extent with its key, besides the key's text (measured)."""

_RAW = Encoding()
_GATHERED = Encoding(gathered="in ranges")


class KeptValues:
    """The extents of kept values by their keys; implements ``formats.values.Values``."""

    def __init__(self) -> None:
        self.extents: dict[str, Extent] = {}
        self.chunks: dict[str, str] = {}

    @property
    def metadata_bytes(self) -> int:
        return sum(_EXTENT_BYTES + len(key) for key in self.extents)

    def find(self, key: str, what: str) -> Extent | None:  # noqa: ARG002  the file was compared when it was opened
        """The extent of a value within the file."""
        return self.extents.get(key)

    def below(self, prefix: str) -> Iterator[str]:
        """The one chunk of the array whose keys begin so."""
        yield from (self.chunks[prefix],) if prefix in self.chunks else ()


def kept_arrays(kept: Mapping[str, Value], aggregate: Aggregate) -> dict[str, ArrayFiles]:
    """The kept arrays and numbers, by param name, each as an array of one chunk."""
    values = KeptValues()
    found = {}
    for name, value in kept.items():
        if isinstance(value, str):
            continue
        array = ArrayFiles(name, _as_zarr(value), values)
        key = array.key(array.zarr.value_key((0,) * len(array.zarr.shape)))
        values.extents[key] = _extent(value, aggregate)
        values.chunks[array.prefix] = key.removeprefix(array.prefix)
        found[name] = array
    return found


def _as_zarr(value: Value) -> ZarrArray:
    if isinstance(value, ArrayBytes):
        dtype, shape = value.dtype, value.shape
        encoding = _GATHERED if len(value.parts) > 1 else _RAW
    else:
        (dtype, _), shape, encoding = element_of(value), (), _RAW
    chunk = tuple(max(1, n) for n in shape)
    fill = bytes(storage_bytes(dtype))
    return ZarrArray(shape, dtype, chunk, chunk, encoding, fill, separator=".", prefixed=False)


def _extent(value: Value, aggregate: Aggregate) -> Extent:
    if not isinstance(value, ArrayBytes):
        data = element_of(value)[1]
        return Extent(aggregate.file, 0, len(data), inline=data, version=aggregate.version)
    start = value.parts[0][0] if value.parts else 0
    pieces = None
    if len(value.parts) > 1:
        box = Box((0,) * len(value.shape), value.shape)
        pieces = Pieces(box, storage_bytes(value.dtype), tuple(_pieces(value, aggregate)))
    return Extent(aggregate.file, start, value.nbytes, pieces=pieces, version=aggregate.version)


def _pieces(value: ArrayBytes, aggregate: Aggregate) -> Iterator[RawPiece]:
    """The flat pieces of an array as boxes of it."""
    itemsize, first = storage_bytes(value.dtype), 0
    for offset, nbytes in value.parts:
        last = first + nbytes // itemsize
        for box in run_boxes(value.shape, first, last):
            yield RawPiece(box, aggregate.file, offset, version=aggregate.version)
            offset += box.size * itemsize
        first = last
