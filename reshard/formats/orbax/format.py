"""Orbax as a format: every kind of Orbax checkpoint is read; zarr3 in plain files and in OCDBT databases is written.

The form of an Orbax target: its options, and from them the chunks and the encoding of each tensor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import Form, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.chunking import MAX_CHUNKS, SPLIT_ABOVE_BYTES, chunk_shape
from reshard.formats.contents import Encoding, StoredTensor, Style
from reshard.formats.format import About, Format, Mark, PlaceNames
from reshard.formats.marks import ORBAX_MARKERS
from reshard.formats.orbax.container import (
    TEMPORARY,
    is_finished,
    marks_of,
    read_container,
)
from reshard.formats.orbax.item_tensors import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.orbax.reader import open_orbax
from reshard.formats.target_files import ORBAX_OPTIONS
from reshard.geometry.dtypes import PACKED, packed_text
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap


class OrbaxForm(Form, frozen=True):
    """An Orbax target.

    Attributes:
        ocdbt: True if all arrays of an item are kept in one OCDBT database.
        style: of the container; None keeps the source's.
        compression: of every chunk; None keeps each tensor's own.
        chunk_bytes: larger chunks are subdivided.
    """

    format: ClassVar[str] = "orbax"

    ocdbt: bool = False
    style: Style | None = None
    compression: Encoding | None = Encoding(checksum=True)
    chunk_bytes: int = SPLIT_ABOVE_BYTES

    @property
    def container_style(self) -> Style | None:
        return self.style

    @property
    def is_database(self) -> bool:
        return self.ocdbt

    def arrange(self, given: Unarranged) -> TargetTensor:
        """The tensor with the regular grid of chunks that zarr needs."""
        spec = given.tensor.spec
        _refuse_packed(spec)
        chunk = _chunks(self, given.source, spec, given.slices)
        count = math.prod(-(-n // c) for n, c in zip(spec.shape, chunk, strict=True))
        if count > MAX_CHUNKS:
            raise PlanError(
                f"{spec.name!r} of shape {list(spec.shape)} would be written in {count} chunks, but no file "
                f"system copes with more than {MAX_CHUNKS} files per tensor; allow larger chunks (chunk_bytes)"
            )
        storage = Grid.regular(spec.shape, chunk)
        spec = replace(spec, storage=storage, chunk_shape=chunk)
        return replace(given.tensor, spec=spec, encoding=_encoding(self, given.source))

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.orbax.write_files import plan_files

        return plan_files(target, self)


def _chunks(
    form: OrbaxForm, source: StoredTensor, target: TensorSpec, slices: Grid
) -> tuple[int, ...]:
    """The source's own chunks where encodings are kept and they serve the slices, else the shards."""
    own = source.spec.chunk_shape
    if form.compression is None and own is not None and target.dtype == source.spec.dtype:
        fits = math.prod(own) * target.itemsize <= form.chunk_bytes
        if fits and slices.refine(source.spec.storage) == source.spec.storage:
            return own
    return chunk_shape(slices, target.itemsize, split_above=form.chunk_bytes)


def _encoding(form: OrbaxForm, source: StoredTensor) -> Encoding:
    if form.compression is not None:
        return form.compression
    if source.encoding.compressor in ("tensorstore", "computed"):
        return Encoding(checksum=True)
    if source.encoding.compressor == "zlib":
        return Encoding("gzip", source.encoding.level, checksum=True)
    # A chunk that travels encoded is given a checksum on its way, so that later damage is found.
    return replace(source.encoding, checksum=True, gathered="no", axis_order=())


def _refuse_packed(target: TensorSpec) -> None:
    if target.dtype in PACKED:
        raise PlanError(
            f"{target.name!r} is {target.dtype}, {packed_text(target.dtype)}, which Orbax checkpoints cannot hold; leave it out "
            "(drop), or write safetensors (to)"
        )


_MARK = Mark(
    leaves=leaf_count,
    is_ours=lambda _: True,
    is_finished=is_finished,
    items=lambda root: read_container(MetadataFiles(root)).items,
)
_OF_ITEMS = replace(_MARK, runs="perhaps")


def _recognise(names: PlaceNames) -> Mark | None:
    return {"top": _MARK, "items": _OF_ITEMS, None: None}[marks_of(names)]


ORBAX = Format(
    about=About(
        name="orbax",
        title="Orbax",
        marks=f"Orbax ({', '.join(ORBAX_MARKERS)})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        holds_keys=True,
        options=ORBAX_OPTIONS,
        temporary=TEMPORARY,
    ),
    recognise=_recognise,
    open=lambda root, how: open_orbax(root, how.record, how.uri),
    write=lambda options, _: OrbaxForm(**options),
)
