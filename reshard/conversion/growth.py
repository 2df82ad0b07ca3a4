"""How much larger than its source a target may be: pads, repeats and fills of a map make bytes of nothing."""

from __future__ import annotations

from collections.abc import Iterable

from reshard.conversion.check_target import CheckedOptions
from reshard.errors import PlanError
from reshard.formats.base import Reader
from reshard.geometry.sizes import format_bytes
from reshard.layout.tensor_spec import TensorSpec

FREE_BYTES = 1 << 30
"""A target may always be so much larger, so that a small source may become a padded model."""


def check_growth(reader: Reader, options: CheckedOptions, specs: Iterable[TensorSpec]) -> None:
    """Raises PlanError if the tensors of a target have more bytes than ``max_growth`` allows."""
    if options.max_growth is None:
        return
    source = sum(tensor.spec.nbytes for tensor in reader.tensors.values())
    most = int(options.max_growth * source) + FREE_BYTES
    target = sum(spec.nbytes for spec in specs)
    if target > most:
        raise PlanError(
            f"the target would have {format_bytes(target)}, but the source has {format_bytes(source)}, and a target may have at most "
            f"{options.max_growth:g} times as much and {format_bytes(FREE_BYTES)} more (max_growth); make pad, repeated dimensions, fill "
            "and casts smaller, or raise max_growth"
        )
