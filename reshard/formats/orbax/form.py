"""The form of an Orbax target: its options, and from them the chunks and the encoding of each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import Reader, TargetCheckpoint, TargetTensor
from reshard.formats.chunking import MAX_CHUNKS, SPLIT_ABOVE_BYTES, chunk_shape
from reshard.formats.contents import Container, Encoding, StoredTensor, Style
from reshard.geometry.dtypes import PACKED, packed_text
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from reshard.formats.base import Writer


class OrbaxForm(Struct, frozen=True):
    """An Orbax target.

    Attributes:
        ocdbt: whether all arrays of an item are kept in one OCDBT database.
        style: of the container; None keeps the source's.
        compression: of every chunk; None keeps each tensor's own.
        chunk_bytes: larger chunks are subdivided.
    """

    ocdbt: bool = False
    style: Style | None = None
    compression: Encoding | None = Encoding(checksum=True)
    chunk_bytes: int = SPLIT_ABOVE_BYTES

    @property
    def format(self) -> str:
        return "orbax"

    @property
    def file(self) -> str:
        """An Orbax checkpoint is a folder."""
        return ""

    def container(self, container: Container) -> Container:
        if self.style is None or self.style == container.style:
            return container
        return replace(container, style=self.style)

    def stored(self, tensor: TargetTensor, source: StoredTensor, slices: Grid) -> TargetTensor:
        """With the regular grid of chunks that zarr needs."""
        spec = tensor.spec
        _refuse_packed(spec)
        chunk = self._chunks(source, spec, slices)
        _refuse_too_many(spec, chunk)
        storage = Grid.regular(spec.shape, chunk)
        spec = replace(spec, storage=storage, chunk_shape=chunk)
        return replace(tensor, spec=spec, encoding=self._encoding(source))

    def _chunks(self, source: StoredTensor, target: TensorSpec, slices: Grid) -> tuple[int, ...]:
        """The source's own chunks where encodings are kept and they serve the slices, else the shards."""
        own = source.spec.chunk_shape
        if self.compression is None and own is not None and target.dtype == source.spec.dtype:
            fits = math.prod(own) * target.itemsize <= self.chunk_bytes
            if fits and slices.refine(source.spec.storage) == source.spec.storage:
                return own
        return chunk_shape(slices, target.itemsize, split_above=self.chunk_bytes)

    def _encoding(self, source: StoredTensor) -> Encoding:
        if self.compression is not None:
            return self.compression
        if source.encoding.compressor == "tensorstore":
            return Encoding(checksum=True)
        # A chunk that travels encoded is given a checksum on its way, so that later damage is found.
        return replace(source.encoding, checksum=True, gathered="no", axis_order=())

    def copies(self, tensor: TargetTensor) -> int:  # noqa: ARG002  the same for every tensor
        """One: replicas are not stored."""
        return 1

    def packed_slices(self, tensor: TargetTensor) -> Grid | None:  # noqa: ARG002  the same for every tensor
        """None: chunks share no file."""
        return None

    def put_bytes(self, chunk_bytes: int) -> int | None:
        """The database keeps a copy of each value until it is on disk."""
        return 2 * chunk_bytes if self.ocdbt else None

    def refuse_unsupported(self, target: TargetCheckpoint, source: Reader) -> None:
        """Nothing: Orbax holds every kind of leaf."""

    def warnings(self, target: TargetCheckpoint) -> Iterator[str]:  # noqa: ARG002
        """None."""
        return iter(())

    def open_writer(self, target: TargetCheckpoint) -> Writer:
        from reshard.formats.orbax.write.writer import open_writer

        return open_writer(target, self)


def orbax_form(options: Mapping[str, Any], source: Reader) -> OrbaxForm:  # noqa: ARG001
    """The form that the parsed options ask for."""
    return OrbaxForm(**options)


def _refuse_packed(target: TensorSpec) -> None:
    if target.dtype in PACKED:
        raise PlanError(
            f"{target.name!r} is {target.dtype}, {packed_text(target.dtype)}, which Orbax checkpoints cannot hold; leave it out "
            "(drop), or write safetensors (to)"
        )


def _refuse_too_many(target: TensorSpec, chunk: tuple[int, ...]) -> None:
    count = math.prod(-(-n // c) for n, c in zip(target.shape, chunk, strict=True))
    if count > MAX_CHUNKS:
        raise PlanError(
            f"{target.name!r} of shape {list(target.shape)} would be written in {count} chunks, but no file "
            f"system copes with more than {MAX_CHUNKS} files per tensor; allow larger chunks (chunk_bytes)"
        )
