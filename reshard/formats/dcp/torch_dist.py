"""Megatron's ``torch_dist`` as a format: read as torch's distributed checkpoint, on which it is built, and not written."""

from __future__ import annotations

from reshard.formats.dcp.files import FORMAT as DCP
from reshard.formats.dcp.files import METADATA
from reshard.formats.dcp.finished import is_whole
from reshard.formats.dcp.format import Dcp
from reshard.formats.dcp.megatron import CONFIG, FORMAT, entries_of, is_megatron
from reshard.formats.dcp.price import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.dcp.reader import Conventions
from reshard.formats.format import About, Recognised
from reshard.storage.location import Location

_RECOGNISED = Recognised(
    count_leaves=leaf_count,
    is_finished=is_whole,
    is_ours=lambda _: False,  # no program here could write it again
)


class TorchDist(Dcp):
    """A distributed checkpoint with Megatron's additions."""

    about = About(
        name=FORMAT,
        title="Megatron's torch_dist",
        marks=f"Megatron's torch_dist ({METADATA}, {CONFIG})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        is_written=False,
        is_flat=True,
        written_as=DCP,
    )
    conventions = Conventions(FORMAT, entries_of)

    def recognise(self, root: Location) -> Recognised | None:
        return _RECOGNISED if is_megatron(root) else None


TORCH_DIST = TorchDist()
