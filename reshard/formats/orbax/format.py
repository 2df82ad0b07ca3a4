"""Orbax as a format: every kind of Orbax checkpoint is read; zarr3 in plain files and in OCDBT databases is written."""

from __future__ import annotations

from msgspec.structs import replace

from reshard.formats.format import About, Format, Mark, PlaceNames
from reshard.formats.orbax.container import MARKERS, is_finished, marks_of, read_container
from reshard.formats.orbax.form import OrbaxForm
from reshard.formats.orbax.item_tensors import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.orbax.options import OPTIONS
from reshard.formats.orbax.reader import open_orbax
from reshard.formats.slices.file_digests import MetadataFiles

_MARK = Mark(
    leaves=leaf_count,
    is_ours=lambda _: True,
    is_finished=is_finished,
    items=lambda root: read_container(MetadataFiles(root)).items,
)
_OF_ITEMS = replace(_MARK, runs="perhaps")


def _recognise(names: PlaceNames) -> Mark | None:
    marks = marks_of(names)
    return {"top": _MARK, "items": _OF_ITEMS, None: None}[marks]


ORBAX = Format(
    about=About(
        name="orbax",
        title="Orbax",
        marks=f"Orbax ({', '.join(MARKERS)})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        holds_keys=True,
        options=OPTIONS,
    ),
    recognise=_recognise,
    open=lambda root, how: open_orbax(root, how.record, how.uri),
    write=lambda options, _: OrbaxForm(**options),
)
