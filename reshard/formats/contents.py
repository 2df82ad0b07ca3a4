"""The parts of a checkpoint: tensors with the places of their chunks and the Encoding of their bytes, leaves, items, and the container."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct, field

from reshard.answers.record import Json
from reshard.errors import PlanError
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.grid import Box, Index
from reshard.layout.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from reshard.checksums.crc import Crc
    from reshard.checksums.tensor_digest import PieceCrcs
    from reshard.formats.base import Reader
    from reshard.formats.computed.formula import Formula


Gathered = Literal["no", "in ranges", "at once"]
"""The ways to gather a chunk from raw pieces: not at all; yes, and any range of it can be read alone; yes, and all of it is
read at once, because pieces have another order of axes."""

Compressor = Literal["none", "zstd", "blosc", "gzip", "zlib", "tensorstore", "computed"]


class Encoding(Struct, frozen=True):
    """The stored form of a chunk's bytes: little-endian elements, row-major but for ``axis_order``, compressed, then checked.

    Attributes:
        compressor: the compression of the element bytes; ``"tensorstore"`` means any codec chain that only
            TensorStore decodes, given by ``spec``.
        level: the compressor's level, where it has one.
        checksum: True if a CRC32C of the (compressed) bytes follows them, 4 bytes little-endian.
        spec: for ``"tensorstore"`` the JSON of a TensorStore spec of an array of one such chunk;
            for ``"blosc"`` the JSON of its parameters (cname, shuffle, blocksize); for ``"computed"``, chunks with
            ``Extent.computed``, the bytes of memory that one takes; else "".
        gathered: the way in which chunks are made of raw pieces, if they are; then nothing is compressed or checked.
        read_ahead_bytes: memory in which a stream over a chunk reads ahead, where requests take long; 0 where short
            reads are cheap.
        axis_order: the axes as the chunk stores them, slowest first, where that is not row-major; else (). One more than the tensor has
            means the bytes of an element, where they are stored apart (HDF5's shuffle).
    """

    compressor: Compressor = "none"
    level: int | None = None
    checksum: bool = False
    spec: str = ""
    gathered: Gathered = "no"
    read_ahead_bytes: int = 0
    axis_order: tuple[int, ...] = ()

    @property
    def is_bare(self) -> bool:
        """True if a chunk is its elements' bytes and nothing else, so that nothing in it shows damage."""
        return self.compressor == "none" and not self.checksum


CODECS = "none, zstd, gzip or blosc"
"""The compressors of targets, in words."""

CODECS_TO_GIVE = "none, zstd[:level], gzip[:level], blosc"
"""The same as ``parse_compression`` takes them."""

DEFAULT_LEVEL = {"zstd": 1, "gzip": 6, "blosc": 5}
_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10)}

CHECKSUM = "+crc32c"
"""Ends the name of a codec that appends a checksum; the bytes before it are the same without it."""


def parse_compression(text: str) -> Encoding | None:
    """``none``, ``zstd[:level]``, ``gzip[:level]``, ``blosc`` or ``keep`` (None) as an Encoding.

    >>> parse_compression("zstd:3").level
    3
    """
    name, _, level = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text == "keep":
        return None
    if text == "none":
        return Encoding(checksum=True)
    if text == "blosc":
        return Encoding(
            "blosc", 1, checksum=True, spec='{"cname": "lz4", "shuffle": 1, "blocksize": 0}'
        )
    if name in _LEVELS:
        number = _level(text, level) if level else DEFAULT_LEVEL[name]
        if number in _LEVELS[name]:
            return Encoding(name, number, checksum=True)  # type: ignore[arg-type] # a key of _LEVELS
    raise PlanError(
        f"compression {text!r} is not known; expected none, zstd[:level up to 22], gzip[:0-9], blosc or keep"
    )


def _level(text: str, level: str) -> int:
    try:
        return int(level)
    except ValueError:
        raise PlanError(f"compression {text!r}: the level must be a whole number") from None


@lru_cache(maxsize=256)
def codec_name(encoding: Encoding) -> str:
    """One word for people and for comparing: ``raw+crc32c``, ``zstd:1``.

    ``turned zstd:1`` if chunks store their axes in another order; no target does. ``pieces`` for a chunk that is gathered from raw pieces: it
    is not one range of a file, so it cannot be copied.
    """
    if encoding.gathered != "no":
        return "pieces"
    name = "raw" if encoding.compressor == "none" else encoding.compressor
    level = "" if encoding.level is None or name == "raw" else f":{encoding.level}"
    turned = "turned " if encoding.axis_order else ""
    return turned + name + level + (CHECKSUM if encoding.checksum else "")


class RawPiece(Struct, frozen=True):
    """A box of a tensor whose elements are in a file, uncompressed and little-endian.

    Attributes:
        path: the text of the file's location; see ``storage.location.open_file``.
        offset: of its first byte in the file.
        order: the tensor's axes from the one that is stored slowest to the fastest; () for row-major.
        version: identifies the content of the file, where its store names contents; see ``FileStatus.version``.
        strides: elements from one to the next along each axis, where they leave gaps or are used again, as in a view that torch saved;
            () where they follow one another in that order.
    """

    box: Box
    path: str
    offset: int
    order: tuple[int, ...] = ()
    version: str = ""
    strides: tuple[int, ...] = ()


class GatheredChunk(Struct, frozen=True):
    """A chunk that is gathered from raw pieces.

    Attributes:
        box: of the chunk in its tensor.
        pieces: they contain each of its elements once, and may contain elements of other chunks too.
    """

    box: Box
    itemsize: int
    pieces: tuple[RawPiece, ...]


class Extent(Struct, frozen=True):
    """The location of one encoded chunk: ``length`` bytes of a file from ``offset``, inline bytes, or pieces.

    Attributes:
        path: the text of the file's location; see ``storage.location.open_file``.
        inline: the bytes themselves, where an index contains small values; then ``path`` is the file of the index.
        pieces: those that the chunk is gathered from; then ``path`` and ``offset`` are of the first, and ``length``
            counts the chunk's elements.
        version: identifies the content of the file, where its store names contents; see ``FileStatus.version``.
        computed: the formula and the operands of a chunk that is computed; then ``path`` and ``offset`` are of its first operand, and
            ``length`` counts what is read.
    """

    path: str
    offset: int
    length: int
    inline: bytes | None = None
    pieces: GatheredChunk | None = None
    version: str = ""
    computed: ComputedChunk | None = None


class SourceChunk(Struct, frozen=True, gc=False):
    """A chunk to read.

    Attributes:
        extent: the place of its encoded bytes, or None if it is not stored and holds the fill value.
        box: the elements of the source tensor that it holds, padding excluded.
        stored_shape: its shape with padding.
    """

    index: Index
    extent: Extent | None
    box: Box
    stored_shape: tuple[int, ...]

    @classmethod
    def at(cls, index: Index, spec: TensorSpec, reader: Reader) -> SourceChunk:
        """The chunk at ``index`` of a tensor; CorruptError if it is missing and must not be."""
        extent = reader.locate(spec.name, index)
        return cls(index, extent, spec.storage.box(index), spec.stored_shape(index))


class OperandWindow(Struct, frozen=True, gc=False):
    """The box of an operand that a computed chunk needs, with the places of its chunks.

    Attributes:
        name, dtype, encoding, fill: of the operand, as of a StoredTensor.
        box: of the operand.
        chunks: all that overlap the box, in row-major order.
        is_held: as in ``Operand``.
    """

    name: str
    dtype: str
    encoding: Encoding
    fill: bytes
    box: Box
    chunks: tuple[SourceChunk, ...]
    is_held: bool

    @property
    def stored_bytes(self) -> int:
        """Encoded bytes that are read of it; of raw chunks those of the box."""
        if self.encoding.is_bare:
            return self.box.size * storage_bytes(self.dtype)
        return sum(chunk.extent.length for chunk in self.chunks if chunk.extent is not None)


class ComputedChunk(Struct, frozen=True, gc=False):
    """A chunk that is computed.

    Attributes:
        box: of the result.
        dtype: of the result.
    """

    box: Box
    dtype: str
    formula: Formula
    operands: tuple[OperandWindow, ...]

    @property
    def decoded_bytes(self) -> int:
        """Bytes that are decoded for it: those of its operands, and as many for each place that the formula reads besides."""
        own = sum(each.box.size * storage_bytes(each.dtype) for each in self.operands)
        whole = self.box.size * storage_bytes(self.dtype)
        return own + whole * sum(1 for _ in self.formula.places())

    @property
    def files(self) -> int:
        """The number of places that are read for it."""
        return sum(1 for _ in self.formula.places()) + sum(
            len(operand.chunks) for operand in self.operands
        )


class RecordedRange(Struct, frozen=True):
    """Bytes of a file whose CRC the format recorded, as it does of the records of an archive.

    Attributes:
        extent: plain bytes of a file; all or some of them are elements of a tensor.
        crc: the kind of CRC.
        value: the one that the bytes should have.
    """

    extent: Extent
    crc: Crc
    value: int


class Stored(Struct, frozen=True):
    """The number of chunks of a tensor, and of those that are not stored; a zarr 3 shard counts as one."""

    missing: int
    chunks: int


class StoredTensor(Struct, frozen=True, gc=False):
    """A tensor of a checkpoint as a Reader sees it.

    Attributes:
        encoding: the stored form of each of its chunks.
        fill: bytes of the element that fills a chunk which is not stored (``spec.itemsize`` long).
        may_be_missing: True if a chunk that is not stored means ``fill``; else it is corruption.
        digest: CRC-64/NVME of the full row-major bytes where the checkpoint recorded it, 16 hex digits.
        crcs: the CRCs of its stored pieces, where the format records them and they cover its elements alone.
        is_key: True if this is the data of a PRNG key, which may be moved but never cast.
        is_checked: True if it is computed of bytes whose checksums are compared.
        partition: its split beyond mesh axes, where the checkpoint recorded it
            (``{"strategy": "mod", "axis": 0, "shards": 4}``); stored in logical order all the same.
    """

    spec: TensorSpec
    encoding: Encoding
    fill: bytes
    may_be_missing: bool
    digest: str | None = None
    is_key: bool = False
    partition: Mapping[str, Any] | None = None
    crcs: PieceCrcs | None = None
    is_checked: bool = False

    def proving_crcs(self, *, is_viewed: bool = False) -> PieceCrcs | None:
        """The checksums, where no digest proves more; None where it is read through a view, which does not keep pieces apart."""
        if self.crcs is None or self.digest or (is_viewed and self.crcs.boxes):
            return None
        return self.crcs


class CarriedPart(Struct, frozen=True):
    """Bytes of a value that is not read.

    Attributes:
        box: the elements of an array that they hold.
        crc: their checksum, where the format records one.
    """

    extent: Extent
    box: Box
    crc: int = 0


class Carried(Struct, frozen=True):
    """A value that is not read, as its format stores it; a target of the same format takes it.

    Attributes:
        format: the name of that format.
        shape: of an array.
        parts: they tile the array.
        crc: the checksum of the parts put together, where the format records one.
    """

    format: str
    parts: tuple[CarriedPart, ...]
    shape: tuple[int, ...] = ()
    crc: int = 0


class PathKey(Struct, frozen=True, gc=False):
    """One step of a leaf's path: a dict key or attribute, or a position in a sequence."""

    key: str
    is_sequence: bool = False


ARRAY_TYPES = frozenset({"jax.Array", "np.ndarray", "scalar"})
"""The types that Orbax itself records of arrays; any other is that of a program's own handler."""


class Leaf(Struct, frozen=True, gc=False):
    """One leaf of a checkpoint's tree.

    Attributes:
        name: the keys of ``path`` joined with ``/``, below ``item/`` where the container has ``naming_items``.
        item: name of the item that holds it; "" for a checkpoint that is one tree.
        tensor: True if it has a tensor (of the same name); else it is a string, None, an empty
            container, or another value that is copied unchanged.
        meta: the format's metadata of the leaf, which is written unchanged where the target
            has the same format (Orbax: ``value_metadata``, ``ext_metadata``, a string's text, ``sharding`` and
            ``memory_kind`` where the layout does not say everything about its placement). A value that is not read
            has ``object``, its kind in words, and ``digest``, a text that is the same for the same content; and ``carried`` where a target
            of the same format takes it.
    """

    name: str
    path: tuple[PathKey, ...]
    item: str = ""
    tensor: bool = True
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """The string, where it is one."""
        found = self.meta.get("string")
        return found if isinstance(found, str) else None

    @property
    def is_object(self) -> bool:
        """True for a value that is not read: only the program that wrote it can read it."""
        return "object" in self.meta

    @property
    def carried(self) -> Carried | None:
        """The place of a value that is not read, if a target of the same format takes it."""
        found = self.meta.get("carried")
        return found if isinstance(found, Carried) else None

    @property
    def value_type(self) -> str:
        """The type that the saver recorded: ``"scalar"``, ``"None"``, ``"Dict"``, …"""
        metadata: Mapping[str, Any] = self.meta.get("value_metadata") or {}
        return str(metadata.get("value_type", ""))

    @property
    def kind(self) -> str:
        """The kind of a leaf that is no tensor, in words."""
        if self.text is not None:
            return "a string"
        if self.is_object:
            return str(self.meta["object"])
        if self.value_type in ("Dict", "List", "Tuple", "NamedTuple"):
            return f"an empty {self.value_type.lower()}"
        return self.value_type or "no tensor"


class Item(Struct, frozen=True):
    """An item of a checkpoint.

    It is a tree of leaves, or other data that is copied unchanged.

    Attributes:
        name: "" for a checkpoint that is one tree without a container.
        directory: its folder below the checkpoint ("" for the checkpoint itself).
        handler: the format's own name of its reader (Orbax's handler type string).
        meta: the format's metadata of the whole tree (Orbax: custom_metadata).
    """

    JSON: ClassVar[Json] = Json(("name", "directory", "is_tree", "handler"))

    name: str
    directory: str
    is_tree: bool
    handler: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


Style = Literal["v0", "v1"]


class Container(Struct, frozen=True):
    """The container of the items, from which a target of the same format gets the same form.

    Attributes:
        style: Orbax's "v0" (single item or step folder) or "v1"; None in other formats, from which Orbax targets get v0.
        meta: the container's own metadata, which is written unchanged.
        item_names: True if names begin with their item even for a single tree, such as a part of a checkpoint of
            several trees.
    """

    style: Style | None
    items: tuple[Item, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    item_names: bool = False

    @property
    def naming_items(self) -> tuple[str, ...]:
        """The items whose names are the first key of their leaves' names; none where names do not include the
        item."""
        trees = tuple(item.name for item in self.items if item.is_tree)
        return trees if len(trees) > 1 or self.item_names else ()
