"""Orbax in the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from reshard.formats.base import Reader
from reshard.formats.contents import Item, Stored
from reshard.formats.known_format import KnownFormat
from reshard.formats.orbax.container import (
    MARKERS,
    is_finished,
    is_marked,
    is_orbax,
    read_container,
)
from reshard.formats.orbax.folders_to_record import folders_to_record
from reshard.formats.orbax.form import orbax_form
from reshard.formats.orbax.metadata_price import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.orbax.options import OPTIONS
from reshard.formats.orbax.reader import OrbaxReader, open_orbax
from reshard.formats.slices.metadata_files import MetadataFiles
from reshard.storage.location import Location


def _items(root: Location) -> tuple[Item, ...]:
    return read_container(MetadataFiles(root)).items


def _chunk_test(reader: Reader) -> Callable[[str], bool]:
    return cast("OrbaxReader", reader).chunk_files.__contains__


def _lacking_chunks(reader: Reader, names: Iterable[str]) -> dict[str, Stored]:
    return cast("OrbaxReader", reader).lacking(names)


def _with_missing(reader: Reader, may_be_missing: bool) -> Reader:
    return cast("OrbaxReader", reader).with_missing(may_be_missing)


ORBAX = KnownFormat(
    name="orbax",
    title="Orbax",
    marks=f"Orbax ({', '.join(MARKERS)})",
    matches=is_orbax,
    open=open_orbax,
    count_leaves=leaf_count,
    leaf_bytes=OPENED_LEAF_BYTES,
    is_ours=is_orbax,
    is_no_run=is_marked,
    takes_record=lambda _: True,
    folders_to_record=folders_to_record,
    options=OPTIONS,
    form=orbax_form,
    is_finished=is_finished,
    items=_items,
    lacking_chunks=_lacking_chunks,
    with_missing=_with_missing,
    chunk_test=_chunk_test,
)
