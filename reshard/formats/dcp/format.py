"""torch's distributed checkpoint as a format, and Megatron's ``torch_dist``, which is built on it and only read."""

from __future__ import annotations

from reshard.formats.dcp.files import ENDING, FORMAT, METADATA, is_dcp, is_replaceable
from reshard.formats.dcp.finished import is_whole
from reshard.formats.dcp.form import DcpForm
from reshard.formats.dcp.megatron import CONFIG, entries_of, is_megatron
from reshard.formats.dcp.megatron import FORMAT as MEGATRON
from reshard.formats.dcp.price import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.dcp.reader import PLAIN, Conventions, open_dcp
from reshard.formats.format import About, Format, Mark, PlaceNames

_MARK = Mark(leaves=leaf_count, is_finished=is_whole, is_ours=is_replaceable)


def _recognise(names: PlaceNames) -> Mark | None:
    return _MARK if is_dcp(names) else None


DCP = Format(
    about=About(
        name=FORMAT,
        title="torch DCP",
        marks=f"torch DCP ({METADATA}, *{ENDING})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        is_flat=True,
    ),
    recognise=_recognise,
    open=lambda root, how: open_dcp(root, how.record, how.uri, PLAIN),
    write=lambda _, __: DcpForm(),
)

# A target never replaces it: no program here could write it again.
_OF_MEGATRON = Mark(leaves=leaf_count, is_finished=is_whole)


def _recognise_megatron(names: PlaceNames) -> Mark | None:
    return _OF_MEGATRON if is_megatron(names) else None


TORCH_DIST = Format(
    about=About(
        name=MEGATRON,
        title="Megatron's torch_dist",
        marks=f"Megatron's torch_dist ({METADATA}, {CONFIG})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        is_flat=True,
        written_as=FORMAT,
    ),
    recognise=_recognise_megatron,
    open=lambda root, how: open_dcp(root, how.record, how.uri, Conventions(MEGATRON, entries_of)),
)
