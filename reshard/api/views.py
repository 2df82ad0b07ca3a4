"""open_view: the files that a conversion would write, read without being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from reshard.api.sources import source_of
from reshard.arguments import takes_options
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of
from reshard.errors import PlanError

if TYPE_CHECKING:
    from reshard.arguments import Dequantized, Path, Unlisted
    from reshard.conversion.check_target import CheckedTarget
    from reshard.conversion.options import ConvertOptions
    from reshard.formats.choose import Step
    from reshard.views.checkpoint_view import CheckpointView

OF_A_RUN = ("overwrite", "restart", "state", "unsafe_commit", "check")
"""Options of ``convert`` that say how a target is written."""


@takes_options(Target)
def open_view(
    source: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
    quantize_like: Path | None = None,
    max_memory: int | str | None = None,
    **options: Unpack[ConvertOptions],
) -> CheckpointView:
    """Plans the files that ``convert`` with the same options would write, without writing them: each is read when it is asked for.

    The files have exactly the bytes that ``convert`` writes, but for records of digests: they are left out of a folder, and zeros in a
    single file, where the source does not record the digest of each tensor, or its bits change. The default of ``to`` is safetensors.

    Args:
        step, item, unlisted, dequantize, lora, quantize_like: as for ``convert``.
        max_memory: bytes, or text such as ``"64MiB"``, of the buffers of one read; the default is that of ``restore``.
        options: as for ``convert``, without those that say how a target is written.

    Raises the errors of ``plan``; PlanError for a format whose files cannot be known before the tensors are read.

    >>> view = open_view("ckpt/100", map="llama", config="models/llama")  # doctest: +SKIP
    >>> b"".join(view.files["model.safetensors"].read(0, 8))  # doctest: +SKIP
    """
    from reshard.views.checkpoint_view import CheckpointView

    target = view_target(max_memory, **options)
    chosen = source_of(source, step, item, unlisted, dequantize, lora, quantize_like)
    return CheckpointView(chosen, target)


def view_target(max_memory: int | str | None = None, **options: Any) -> CheckedTarget:
    """The parsed options of a view; one may be parsed once for the views of many steps. Raises as ``open_view``."""
    from reshard.conversion.check_target import check_target

    for name in OF_A_RUN:
        if options.get(name):
            raise PlanError(
                f"{name} says how a target is written, and a view writes none; leave it out ({name})"
            )
    asked = Target("", **{"to": "safetensors", **options})
    return check_target(asked, limits_of(max_memory, None))
