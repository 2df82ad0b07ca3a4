"""torch's distributed checkpoint as a format, and Megatron's ``torch_dist``, which is built on it and only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from reshard.formats.base import Form, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.dcp.files import (
    FORMAT,
    MEGATRON,
    entries_of,
    is_megatron,
    is_replaceable,
    is_whole,
)
from reshard.formats.dcp.reader import OPENED_LEAF_BYTES, PLAIN, Conventions, leaf_count, open_dcp
from reshard.formats.format import About, Format, Mark
from reshard.formats.loose_pieces import in_shared_files, kept_shards, refuse_dtype
from reshard.formats.marks import DCP_ENDING, DCP_METADATA, MEGATRON_CONFIG
from reshard.formats.torch.saved_values import TENSOR_DTYPES

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap


class DcpForm(Form, frozen=True):
    """A target of torch's distributed checkpoint: a folder."""

    format: ClassVar[str] = FORMAT

    def arrange(self, given: Unarranged) -> TargetTensor:
        """The tensor with contiguous parts of each slice as chunks, cut where the source is if that is near.

        Raises PlanError for a dtype that torch has no tensors of.
        """
        tensor, source = given.tensor, given.source
        refuse_dtype(tensor, TENSOR_DTYPES, "tensors of torch")
        return in_shared_files(tensor, source, kept_shards(tensor, source))

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.dcp.write_files import plan_files

        return plan_files(target)


_MARK = Mark(leaves=leaf_count, is_finished=is_whole, is_ours=is_replaceable)


DCP = Format(
    about=About(
        name=FORMAT,
        title="torch DCP",
        marks=f"torch DCP ({DCP_METADATA}, *{DCP_ENDING})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        is_flat=True,
    ),
    recognise=lambda _: _MARK,
    open=lambda root, how: open_dcp(root, how.record, how.uri, PLAIN),
    write=lambda _, __: DcpForm(),
)

# A target never replaces it: no program here could write it again.
_OF_MEGATRON = Mark(leaves=leaf_count, is_finished=is_whole)


TORCH_DIST = Format(
    about=About(
        name=MEGATRON,
        title="Megatron's torch_dist",
        marks=f"Megatron's torch_dist ({DCP_METADATA}, {MEGATRON_CONFIG})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        is_flat=True,
        written_as=FORMAT,
    ),
    recognise=lambda names: _OF_MEGATRON if is_megatron(names) else None,
    open=lambda root, how: open_dcp(root, how.record, how.uri, Conventions(MEGATRON, entries_of)),
)
