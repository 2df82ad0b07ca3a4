"""The form of a target of torch's distributed checkpoint: slices and chunks of each tensor, and the dtypes that torch has."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import Form, TargetTensor
from reshard.formats.chunking import contiguous_grid
from reshard.formats.contents import Encoding, StoredTensor
from reshard.formats.dcp.reader import FORMAT
from reshard.formats.slice_places import kept_shards
from reshard.formats.torch.dtypes import TENSOR_DTYPES

CHUNK_BYTES = 16 << 20
"""Most bytes of a chunk. It is a unit of work only: readers see slices."""


class DcpForm(Form, frozen=True):
    """A target of torch's distributed checkpoint: a folder."""

    format: ClassVar[str] = FORMAT


def arrange(tensor: TargetTensor, source: StoredTensor) -> TargetTensor:
    """The tensor with contiguous parts of each slice as chunks, cut where the source is if that is near.

    Raises PlanError for a dtype that torch has no tensors of.
    """
    spec = tensor.spec
    if spec.dtype not in TENSOR_DTYPES:
        raise PlanError(
            f"{spec.name!r} is {spec.dtype}, which tensors of torch do not have; drop it, or cast it to one of {', '.join(TENSOR_DTYPES)}"
        )
    wanted, grid = source.spec.storage, kept_shards(tensor, source)
    storage = contiguous_grid(
        grid, spec.itemsize, CHUNK_BYTES, wanted if wanted.shape == grid.shape else None
    )
    return replace(tensor, spec=replace(spec, storage=storage), encoding=Encoding(), packed=grid)
