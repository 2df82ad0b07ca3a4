"""The records of a checkpoint that is read, and of one that is written.

Opening gives a ``Reader``: facts, and the ``Chunks`` that locate each encoded chunk. A target is a ``Form`` (the
options of its format) and a ``TargetTensor`` for each tensor, in a ``TargetCheckpoint``.

``Made`` is the source and the rules of a checkpoint that reshard made, as slices.json records them. The rules are recorded as
written, for people to read. Their result is recorded too, tensor by tensor, so that no program applies patterns from a file: a
hostile pattern might never end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from reshard.errors import FormatError
from reshard.formats.contents import (
    Container,
    Encoding,
    Extent,
    Leaf,
    RecordedRange,
    Stored,
    StoredTensor,
    Style,
)
from reshard.formats.slices.kept_metadata import NO_METADATA, KeptMetadata
from reshard.geometry.grid import Box, Grid, Index
from reshard.layout.changes import Changes
from reshard.layout.partitioners import div_cuts
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import Location

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap
    from reshard.formats.slices.record_files import RecordedFolder

RecordUse = Literal["checked", "unchecked", "ignored"]
"""The use of a checkpoint's slices.json on opening: refuse contradictions, use the parts that fit, or use only whether
names begin with items."""


class Chunks(Protocol):
    """The places of the chunks of an open checkpoint. Every method is safe from any thread.

    A format implements ``locate``; a class that inherits from this one has the others, for a format that stores each chunk
    once and always.
    """

    def locate(self, name: str, index: Index) -> Extent | None:
        """The location of the encoded chunk; None for a chunk that is not stored and may be missing.

        A format that stores loose boxes instead of a grid takes grid and locations from ``loose_pieces.gathered_chunks``.

        Raises CorruptError, naming tensor and chunk, for a chunk that must not be missing.
        """
        ...

    @property
    def origin(self) -> Chunks:
        """The chunks as the files have them, where these ones are computed; else itself."""
        return self

    def copies(self, _name: str, /) -> Sequence[tuple[Extent, ...]]:
        """Ranges of files that hold the same slice of a tensor, a tuple for each slice that is stored several times.

        ``locate`` gives the first of them; only checks of a checkpoint read the others.
        """
        return ()

    def recorded_ranges(self, _name: str, /) -> Sequence[RecordedRange]:
        """Ranges of files that hold the elements of a tensor, whose CRCs the format recorded; none where it records none.

        Checks read those of a tensor without ``crcs``, and those of a damaged tensor, to find the damaged file.
        """
        return ()

    def lacking(self, _names: Iterable[str], /) -> dict[str, Stored]:
        """The tensors, among these, with chunks that are not stored: from a listing or an index, without a look-up of each chunk."""
        return {}

    def with_missing(self, reader: Reader, _may_be_missing: bool, /) -> Reader:
        """The open checkpoint, in which any chunk that is not stored means the fill value, or is damage."""
        return reader

    def chunk_test(self) -> Callable[[str], bool] | None:
        """A test that tells chunks from other files, by the path below the checkpoint; None if that is not known.

        A file that is no chunk, and that the record does not name, is damage.
        """
        return None

    def folders_to_record(self, reader: Reader, _root: Location, /) -> list[RecordedFolder]:
        """The folders of the open checkpoint that get a slices.json, the top last; ``root`` is viewed as one checkpoint.

        Raises FormatError for a checkpoint that has no room for one.
        """
        raise FormatError(
            f"{reader.uri} has no room for a record of digests: its files are only read; convert it to a format that records them"
        )


class WeightsVersion(Struct, frozen=True):
    """A version of weights, as the last delta of a chain names it.

    Attributes:
        id: of the version.
        root: the root of its identity, 64 hex digits, where the delta records one.
    """

    id: str
    root: str | None = None


class Reader(Struct, frozen=True, eq=False):
    """An open checkpoint: the content of its metadata. Opening reads no tensor bytes.

    Attributes:
        uri: its place, as the user named it.
        format: the format's name, such as ``"orbax"``.
        tensors: by name, in the tree's order.
        leaves: every leaf, tensors among them, in the tree's order.
        chunks: the places of the tensors' bytes.
        metadata_bytes: estimate of the memory that the open checkpoint keeps.
        conversion: the conversion that made all of it, as its record says; "" if none did.
        made: its source and its rules, as its record says; None if they are not recorded.
        warnings: notes for a person about how it was opened, one sentence each.
        takes_record: True if ``reshard fingerprint`` can record digests in it.
        version: the version of the weights that its deltas make; None without deltas.
        metadata: the texts beside the tensors.
        computed: the options that ask for what is computed of what is stored, as plain data, in the order in which they are applied.
    """

    uri: str
    format: str
    container: Container
    tensors: Mapping[str, StoredTensor]
    leaves: Sequence[Leaf]
    chunks: Chunks
    metadata_bytes: int
    conversion: str = ""
    made: Made | None = None
    warnings: Sequence[str] = ()
    takes_record: bool = False
    version: WeightsVersion | None = None
    metadata: KeptMetadata = NO_METADATA
    computed: Mapping[str, Any] = field(default_factory=dict)

    def locate(self, name: str, index: Index) -> Extent | None:
        """The location of an encoded chunk; see ``Chunks.locate``."""
        return self.chunks.locate(name, index)

    def copies(self, name: str) -> Sequence[tuple[Extent, ...]]:
        """Ranges that hold the same slice of a tensor; see ``Chunks.copies``."""
        return self.chunks.copies(name)

    def recorded_ranges(self, name: str) -> Sequence[RecordedRange]:
        """Ranges with a tensor's elements whose CRCs are recorded; see ``Chunks.recorded_ranges``."""
        return self.chunks.recorded_ranges(name)


class TargetTensor(Struct, frozen=True, gc=False):
    """A tensor to be written.

    Attributes:
        leaf: its place in the target tree, with the source's metadata of it.
        spec: its name, shape and dtype; ``chunk_shape`` is never None for formats that pad.
        partition: its split beyond mesh axes (``{"strategy": "fixed_shards", ...}``), if any.
        slices: the slices of the shards where neither the layout nor an even partition gives them: a grid, or loose
            boxes.
        copies: the number of places in which each of its chunks is stored.
        packed: its slices, if the chunks of each follow one another in a file that they share, row-major; None where each chunk
            has a file of its own, or none.
    """

    spec: TensorSpec
    encoding: Encoding
    leaf: Leaf
    partition: Mapping[str, Any] | None = None
    slices: Grid | tuple[Box, ...] | None = None
    copies: int = 1
    packed: Grid | None = None

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


class Unarranged(Struct, frozen=True):
    """A tensor of a target before its format gives it chunks and an encoding.

    Attributes:
        tensor: as one chunk without encoding.
        source: the stored tensor that it is made of.
        slices: the parts of it that readers will want.
    """

    tensor: TargetTensor
    source: StoredTensor
    slices: Grid


class Form(Struct, frozen=True):
    """A target of one format: its options, and the steps in which it is planned.

    Its ``repr`` shows the options; it must be the same in the run that resumes.
    """

    format: ClassVar[str]
    """The format's name."""

    @property
    def file(self) -> str:
        """Name of the one file that becomes the target; "" where a folder does, ``staging.FILES_OF_PREFIX`` where several files do."""
        return ""

    @property
    def container_style(self) -> Style | None:
        """The style of the target's container; None keeps the source's."""
        return None

    @property
    def is_database(self) -> bool:
        """True if chunks are put into a database, so that they have no places in files."""
        return False

    def container(self, container: Container) -> Container:
        """The source's container as the target has it."""
        style = self.container_style
        kept = style is None or style == container.style
        return container if kept else replace(container, style=style)

    def put_bytes(self, chunk_bytes: int) -> int | None:
        """Memory that a database needs to store a chunk: it keeps a copy until that is on disk. None where chunks have places."""
        return 2 * chunk_bytes if self.is_database else None

    def arrange(self, given: Unarranged) -> TargetTensor:
        """The tensor with the chunks and the encoding in which it is stored.

        Raises PlanError, naming the tensor, for a dtype that the format does not have and for too many chunks.
        """
        raise NotImplementedError

    def warnings(self, _target: TargetCheckpoint, _source: Reader, /) -> Iterable[str]:
        """Notes for a person about a target, one sentence each; PlanError for options that its tensors contradict."""
        return ()

    def plan(self, target: TargetCheckpoint) -> FileMap:
        """The files of a target of this form; nothing is written yet.

        Raises FormatError or PlanError, naming the tensor, for names that collide or are unsafe and for arrays that
        the format cannot hold; LayoutError where a layout does not divide its tensor.
        """
        raise NotImplementedError


class TargetCheckpoint(Struct, frozen=True):
    """Everything that a format must know before the first byte of a target.

    Attributes:
        leaves: every leaf in tree order, tensors included.
        copied: text of the location of each item that is no tree, by item name.
        form: its format, with the options of that format.
        conversion: recorded in the checkpoint, so that the same conversion is not done twice; "" for none.
        made: recorded in the checkpoint, so that ``verify`` can compare it with its source; None for none.
        version: of the weights, recorded where there is an index; None for none.
        metadata: the texts beside the tensors, which its record has where its files have no place for them.
    """

    container: Container
    tensors: Mapping[str, TargetTensor]
    leaves: Sequence[Leaf]
    copied: Mapping[str, str]
    form: Form
    conversion: str = ""
    made: Made | None = None
    version: str | None = None
    metadata: KeptMetadata = NO_METADATA


class Origin(Struct, frozen=True):
    """The source tensor of a tensor whose name or dtype changed.

    Attributes:
        dtype: the source's dtype, if the tensor was cast; None if every bit was kept.
        saturate: True if that cast clipped values to the largest finite one.
    """

    name: str
    dtype: str | None = None
    saturate: bool = False


class Made(Struct, frozen=True):
    """The source and the rules of a checkpoint.

    Attributes:
        source: digest of the source's tree, 32 hex digits (``planning.rules.tree_digest``).
        tensors: the number of tensors that were made.
        changes: the rules, as written.
        origins: the origins of tensors whose name or dtype changed, by their new name.
        leaves: the names in the source of the leaves that are not tensors, by their new name; None if they are not
            recorded, as in older files.
        by: the map that made them, as ``GivenMap.plain`` has it; None for tensors that were moved one by one, which alone have
            origins.
        computed: the options of the source by which its tensors were computed of what it stores, such as ``dequantize``.
    """

    source: str
    tensors: int
    changes: Changes = field(default_factory=Changes)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    leaves: Mapping[str, str] | None = None
    by: Mapping[str, Any] | None = None
    computed: Mapping[str, Any] = field(default_factory=dict)
