"""The computations that the options of a call ask for, over the checkpoint that it reads; each is a module that is imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

if TYPE_CHECKING:
    from reshard.formats.base import Reader
    from reshard.formats.computed.formula import Computation
    from reshard.formats.quantized import Quantized
    from reshard.formats.registry import CheckpointPath

COMPUTATIONS: Mapping[str, str] = {
    "merge": "Merge",
    "dequantize": "Dequantize",
    "lora": "Lora",
    "quantize_like": "QuantizeLike",
}
"""The class of each option, in the order in which they are applied. It is in the module of the option's name, and ``asked`` makes it of
the option's value, or again of the value that ``Computation.option`` recorded."""


def computed(chosen: CheckpointPath, **asked: Any) -> CheckpointPath:
    """The checkpoint with what these options make of it; their values are as in ``reshard.convert``, or as they were recorded.

    Raises PlanError for a value that makes sense with no checkpoint.
    """
    more: list[Computation] = [
        getattr(import_module(f"reshard.arithmetic.{option}"), name).asked(asked[option])
        for option, name in COMPUTATIONS.items()
        if option in asked
    ]
    return replace(chosen, computed=(*chosen.computed, *more))


def quantized_text(reader: Reader, found: Quantized | None) -> str:
    """The quantised weights of a checkpoint, as they are or as they were, in words; "" where there are none."""
    if "dequantize" in reader.computed:
        from reshard.arithmetic.dequantize import dequantized_text

        return dequantized_text(reader)
    return "" if found is None else found.text
