"""The form of a target of torch's distributed checkpoint: slices and chunks of each tensor, and the dtypes that torch has."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from reshard.formats.base import Form, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.dcp.files import FORMAT
from reshard.formats.slice_places import in_shared_files, kept_shards, refuse_dtype
from reshard.formats.torch.dtypes import TENSOR_DTYPES

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
        from reshard.formats.dcp.write.file_map import plan_files

        return plan_files(target)
