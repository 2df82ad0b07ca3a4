"""source_of: the checkpoint that a call reads, with what the options of its source make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reshard.arguments import Path, Unlisted
    from reshard.formats.choose import Step
    from reshard.formats.registry import CheckpointPath


def source_of(
    path: Path,
    step: Step | None,
    item: str | None,
    unlisted: Unlisted,
    what: str = "source",
    **asked: Any,
) -> CheckpointPath:
    """The checkpoint that these arguments of ``reshard.convert`` name together; raises as ``choose_checkpoint``."""
    from reshard.formats.choose import choose_checkpoint

    return with_computed(choose_checkpoint(path, step, item, what, unlisted), **asked)


def with_computed(chosen: CheckpointPath, **asked: Any) -> CheckpointPath:
    """The checkpoint with what options such as ``dequantize`` make of it; those that are None or empty ask for nothing."""
    # An array of numpy is equal to nothing as a whole, so types come first.
    empty = {n for n, v in asked.items() if v is None or (isinstance(v, list | tuple) and not v)}
    given = {name: value for name, value in asked.items() if name not in empty}
    if not given:
        return chosen
    from reshard.arithmetic.asked import computed

    return computed(chosen, **given)
