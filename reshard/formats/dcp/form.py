"""The form of a target of torch's distributed checkpoint: slices and chunks of each tensor, and the dtypes that torch has."""

from __future__ import annotations

from typing import ClassVar

from reshard.formats.base import Form, TargetTensor
from reshard.formats.contents import StoredTensor
from reshard.formats.dcp.files import FORMAT
from reshard.formats.slice_places import in_shared_files, kept_shards, refuse_dtype
from reshard.formats.torch.dtypes import TENSOR_DTYPES


class DcpForm(Form, frozen=True):
    """A target of torch's distributed checkpoint: a folder."""

    format: ClassVar[str] = FORMAT


def arrange(tensor: TargetTensor, source: StoredTensor) -> TargetTensor:
    """The tensor with contiguous parts of each slice as chunks, cut where the source is if that is near.

    Raises PlanError for a dtype that torch has no tensors of.
    """
    refuse_dtype(tensor, TENSOR_DTYPES, "tensors of torch")
    return in_shared_files(tensor, source, kept_shards(tensor, source))
