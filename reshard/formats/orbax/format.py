"""Orbax as a format: what the registry knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from reshard.arguments import Unlisted
from reshard.formats.base import (
    About,
    Form,
    Format,
    Reader,
    Recognised,
    Record,
    TargetCheckpoint,
    TargetTensor,
)
from reshard.formats.contents import Item, StoredTensor
from reshard.formats.file_map import FileMap
from reshard.formats.orbax.container import (
    MARKERS,
    is_finished,
    marks_of,
    read_container,
)
from reshard.formats.orbax.folders_to_record import folders_to_record
from reshard.formats.orbax.form import OPTIONS, OrbaxForm, arrange
from reshard.formats.orbax.metadata_price import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.orbax.reader import open_orbax
from reshard.formats.slices.metadata_files import MetadataFiles
from reshard.formats.slices.record_files import RecordedFolder
from reshard.geometry.grid import Grid
from reshard.storage.location import Location


def _items(root: Location) -> tuple[Item, ...]:
    return read_container(MetadataFiles(root)).items


_MARKED = Recognised(count_leaves=leaf_count, is_finished=is_finished, items=_items)
_OF_ITEMS = replace(_MARKED, is_no_run=lambda _: False)


class Orbax(Format):
    """Every kind of Orbax checkpoint is read; zarr3 in plain files and in OCDBT databases is written."""

    about = About(
        name="orbax",
        title="Orbax",
        marks=f"Orbax ({', '.join(MARKERS)})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        options=OPTIONS,
    )

    def recognise(self, root: Location) -> Recognised | None:
        marks = marks_of(root)
        if marks is None:
            return None
        return _MARKED if marks == "top" else _OF_ITEMS

    def open(
        self,
        root: Location,
        record: Record = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",  # noqa: ARG002  every tensor is listed
    ) -> Reader:
        return open_orbax(root, record, uri)

    def form(self, options: Mapping[str, Any], source: Reader) -> OrbaxForm:  # noqa: ARG002
        return OrbaxForm(**options)

    def arrange(
        self, form: Form, tensor: TargetTensor, source: StoredTensor, slices: Grid
    ) -> TargetTensor:
        return arrange(cast("OrbaxForm", form), tensor, source, slices)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.orbax.write.file_map import plan_files

        return plan_files(target, cast("OrbaxForm", target.form))

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:
        return folders_to_record(root, reader)


ORBAX = Orbax()
