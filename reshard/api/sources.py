"""source_of: the checkpoint that a call reads, with what the options of its source make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard.arguments import Dequantized, Path, Unlisted
    from reshard.formats.choose import Step
    from reshard.formats.registry import CheckpointPath


def source_of(
    path: Path,
    step: Step | None,
    item: str | None,
    unlisted: Unlisted,
    dequantize: Dequantized | None,
    lora: Sequence[Path] | None,
    quantize_like: Path | None = None,
    *,
    what: str = "source",
) -> CheckpointPath:
    """The checkpoint that these arguments of ``reshard.convert`` name together; raises as ``choose_checkpoint`` and ``with_computed``."""
    from reshard.formats.choose import choose_checkpoint

    chosen = choose_checkpoint(path, step, item, what, unlisted)
    return with_computed(chosen, dequantize, lora, quantize_like)


def with_computed(
    chosen: CheckpointPath,
    dequantize: Dequantized | None,
    lora: Sequence[Path] | None,
    quantize_like: Path | None,
) -> CheckpointPath:
    """The checkpoint with what these options make of it; None and an empty list ask for nothing. Raises PlanError for wrong values."""
    asked = {"dequantize": dequantize, "lora": lora, "quantize_like": quantize_like}
    # An array of numpy is equal to nothing as a whole, so types come first.
    empty = {n for n, v in asked.items() if v is None or (isinstance(v, list | tuple) and not v)}
    given = {name: value for name, value in asked.items() if name not in empty}
    if not given:
        return chosen
    from reshard.arithmetic.asked import computed

    return computed(chosen, **given)
