"""The computations that the options of a call ask for, over the checkpoint that it reads; each is a module that is imported only then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from reshard.arguments import Path
    from reshard.formats.formula import Computation
    from reshard.formats.registry import CheckpointPath


def computed(
    chosen: CheckpointPath,
    *,
    dequantize: str | None = None,
    lora: Sequence[Path] = (),
    quantize_like: Path | None = None,
) -> CheckpointPath:
    """The checkpoint with what these options make of it, in this order; each is as in ``reshard.convert``.

    Raises PlanError for a value that makes sense with no checkpoint.
    """
    more: list[Computation] = []
    if dequantize is not None:
        from reshard.arithmetic.dequantize import Dequantize

        more.append(Dequantize.asked(dequantize))
    if lora:
        from reshard.arithmetic.lora import Lora

        more.append(Lora.asked(lora))
    if quantize_like is not None:
        from reshard.arithmetic.quantize_like import QuantizeLike

        more.append(QuantizeLike.asked(quantize_like))
    return replace(chosen, computed=(*chosen.computed, *more)) if more else chosen
