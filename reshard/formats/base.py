"""The protocols of a checkpoint format, Reader, Form and Writer, and the records that they exchange.

A Reader knows where each encoded chunk is stored and how it is encoded; it reads no tensor bytes. A Form decides how
the tensors of a target are stored. A Writer says where each encoded chunk goes, and writes everything that is not
tensor bytes. The engine moves the bytes; none of the protocols knows about plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from reshard.formats.contents import Container, Encoding, Extent, Leaf, StoredTensor
from reshard.formats.slices.origin import Made
from reshard.geometry.box import Box
from reshard.geometry.grid import Grid, Index
from reshard.layout.partitioners import div_cuts
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

Record = Literal["checked", "unchecked", "ignored"]
"""How opening uses a checkpoint's slices.json: refuse contradictions, use the parts that fit, or use only whether
names begin with items."""


class Reader(Protocol):
    """An open checkpoint. Opening reads metadata only; every method is safe from any thread."""

    @property
    def uri(self) -> str:
        """Where it was opened, as the user named it."""
        ...

    @property
    def format(self) -> str:
        """The format's name, such as ``"orbax"``."""
        ...

    @property
    def container(self) -> Container: ...

    @property
    def metadata_bytes(self) -> int:
        """Estimate of the memory that the open checkpoint keeps."""
        ...

    @property
    def conversion(self) -> str:
        """The conversion that made all of it, as its record says; "" if none did."""
        ...

    @property
    def made(self) -> Made | None:
        """From which source and by which rules it was made, as its record says; None if that is not recorded."""
        ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """By name, in the tree's order."""
        ...

    @property
    def leaves(self) -> Sequence[Leaf]:
        """Every leaf, tensors among them, in the tree's order."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What a person should know of how it was opened, one sentence each."""
        ...

    def locate(self, name: str, index: Index) -> Extent | None:
        """The location of the encoded chunk; None for a chunk that is not stored and may be missing.

        A format that stores loose boxes instead of a grid takes grid and locations from ``loose_pieces.gathered_chunks``.

        Raises CorruptError, naming tensor and chunk, for a chunk that must not be missing.
        """
        ...

    def copies(self, name: str) -> Sequence[tuple[Extent, ...]]:
        """Ranges of files that hold the same slice of a tensor, a tuple for each slice that is stored several times.

        ``locate`` gives the first of them; only what checks a checkpoint reads the others.
        """
        ...


class Place(Struct, frozen=True):
    """Where an encoded target chunk is stored: in a file of its own, or in a part of a file that it shares.

    Attributes:
        file: path below the target's root.
        offset: of the chunk's first byte in a shared file, which ``prepare`` makes in its full size; None for a file
            of its own, which is made with the chunk.
    """

    file: str
    offset: int | None = None

    @property
    def start(self) -> int:
        """The offset of the chunk's first byte in the file."""
        return self.offset or 0


class SharedFile(Struct, frozen=True):
    """A file of a target that chunks share, for stores in which a file is written in order.

    Attributes:
        head: its first bytes; the chunks follow without gaps.
        nbytes: of the whole file.
    """

    head: bytes
    nbytes: int


class TargetTensor(Struct, frozen=True):
    """A tensor to be written.

    Attributes:
        leaf: its place in the target tree, with the source's metadata of it.
        chunk padding: ``spec.chunk_shape`` is never None for formats that pad.
        partition: how it is split beyond mesh axes (``{"strategy": "fixed_shards", ...}``), if at all.
        slices: the slices of the shards where neither the layout nor an even partition gives them: a grid, or loose
            boxes.
    """

    spec: TensorSpec
    encoding: Encoding
    leaf: Leaf
    partition: Mapping[str, Any] | None = None
    slices: Grid | tuple[Box, ...] | None = None

    @property
    def shards(self) -> Grid | tuple[Box, ...]:
        """The boxes of the shards: ``slices``, else the parts of the partition, else the layout's grid.

        Raises LayoutError where the tensor has fewer rows than the partition has shards.
        """
        if self.slices is not None:
            return self.slices
        spec, partition = self.spec, self.partition or {}
        if "axis" not in partition or "shards" not in partition:
            return spec.slices
        axis, shards = partition["axis"], partition["shards"]
        counts = [shards if dim == axis else 1 for dim in range(len(spec.shape))]
        return Grid(spec.shape, tuple(map(div_cuts, spec.shape, counts)))


class TargetCheckpoint(Struct, frozen=True):
    """Everything that a Writer must know before the first byte.

    Attributes:
        leaves: every leaf in tree order, tensors included.
        copied: text of the location of each item that is no tree, by item name.
        form: its format, with the options of that format.
        conversion: recorded in the checkpoint, so that the same conversion is not done twice; "" for none.
        made: recorded in the checkpoint, so that ``verify`` can compare it with its source; None for none.
    """

    container: Container
    tensors: Mapping[str, TargetTensor]
    leaves: Sequence[Leaf]
    copied: Mapping[str, str]
    form: Form
    conversion: str = ""
    made: Made | None = None


class Form(Protocol):
    """A format with the options of one target: how the tensors are stored. A record, whose ``repr`` shows the options."""

    @property
    def format(self) -> str:
        """The format's name."""
        ...

    @property
    def file(self) -> str:
        """Name of the one file that becomes the target; "" where a folder does."""
        ...

    def container(self, container: Container) -> Container:
        """The source's container as the target has it."""
        ...

    def stored(self, tensor: TargetTensor, source: StoredTensor, slices: Grid) -> TargetTensor:
        """The tensor with the chunks and the encoding in which it is stored.

        Args:
            tensor: as one chunk without encoding.
            slices: the parts of it that readers will want.

        Raises PlanError, naming the tensor, for a dtype that the format does not have and for too many chunks.
        """
        ...

    def copies(self, tensor: TargetTensor) -> int:
        """In how many places each of the tensor's chunks is stored."""
        ...

    def packed_slices(self, tensor: TargetTensor) -> Grid | None:
        """The slices of a tensor whose chunks follow one another in a file that they share, row-major; None where each chunk
        has a file of its own, or none."""
        ...

    def put_bytes(self, chunk_bytes: int) -> int | None:
        """Memory that the writer needs to store a chunk through ``put``; None where chunks have places."""
        ...

    def refuse_unsupported(self, target: TargetCheckpoint, source: Reader) -> None:
        """Raises FormatError, listing them, for leaves that the format has no place for."""
        ...

    def warnings(self, target: TargetCheckpoint) -> Iterator[str]:
        """What a person should know about a target of this form, one sentence each."""
        ...

    def open_writer(self, target: TargetCheckpoint) -> Writer:
        """A writer of the target; nothing is written yet.

        Raises FormatError or PlanError, naming the tensor, for names that collide or are unsafe and for arrays that
        the format cannot hold; LayoutError where a layout does not divide its tensor.
        """
        ...


class ChunkChecksum(Struct, frozen=True):
    """What was stored as a chunk of a target, at each of its places.

    Attributes:
        name: of the tensor.
        nbytes: of the chunk as it is stored.
        crc32c: of these bytes; of a chunk that ends with its own CRC32C, that is always the same.
    """

    name: str
    index: Index
    nbytes: int
    crc32c: int


class Writer(Protocol):
    """A checkpoint in the making, below a folder that no reader looks into.

    ``prepare`` comes first, ``finish`` last and once; in between every chunk is written to each of
    its ``places`` or, if it has none, through ``put``.
    """

    def prepare(self, root: Location) -> None:
        """Make the folders, the shared files where they can be written in place, and the metadata that does not depend on the
        data.

        Called again when a run resumes: bytes of chunks that are there stay.
        """
        ...

    def places(self, name: str, index: Index) -> tuple[Place, ...]:
        """Every place that gets the encoded chunk; none if ``put`` must be used."""
        ...

    def shared_file(self, file: str) -> SharedFile:
        """The file that ``places`` names with offsets."""
        ...

    def put(self, name: str, index: Index, data: bytes | memoryview) -> None:
        """Store one whole encoded chunk; safe from any thread."""
        ...

    def holds(self, name: str, index: Index) -> bool:
        """Whether a chunk that ``put`` stored in an earlier run is there; called after ``prepare``."""
        ...

    def keeps(self, file: str) -> bool:
        """Whether a file below the root, which an earlier run left, may hold chunks that ``put`` stored."""
        ...

    def finish(
        self, root: Location, digests: Mapping[str, str], checksums: Iterable[ChunkChecksum]
    ) -> Mapping[str, bytes]:
        """Write the tree's metadata and slice metadata with the tensors' digests.

        Returns the markers, the files that say that all of it is there, by path below the root: the transaction writes
        them, in that order, after everything else.

        Args:
            checksums: each chunk once, in any order, for formats that store checksums of their files. They are read from
                the journal, each time anew: a writer that does not ask pays nothing. A save has no journal, and gives none.
        """
        ...
