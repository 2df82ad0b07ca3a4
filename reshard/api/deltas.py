"""The public functions that make deltas and apply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import replace

from reshard.arguments import path_of
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of
from reshard.errors import PlanError
from reshard.signatures import takes_options

if TYPE_CHECKING:
    from reshard.arguments import Path, Unlisted
    from reshard.conversion.options import ConvertOptions
    from reshard.conversion.report import ConversionReport
    from reshard.engine.progress import Progress
    from reshard.formats.checkpoint_path import CheckpointPath


@takes_options(Target)
def apply(
    base: Path,
    deltas: Sequence[Path],
    target: Path,
    *,
    unlisted: Unlisted = "leave",
    max_memory: int | str | None = None,
    workers: int | None = None,
    max_growth: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
    **options: Unpack[ConvertOptions],
) -> ConversionReport:
    """Folds deltas into a full checkpoint: converts ``base``, as the last of them leaves it, to ``target``.

    It is a ``convert`` in every other way: any format, mesh and place, in one pass and bounded memory; ``target`` appears whole or not at all, and
    the same call resumes an interrupted run. Each delta's checksums are compared, and where a delta lists the checksums of all tensors, as those
    of ``reshard.delta`` do, also those of the tensors that nothing changes.

    Args:
        base: a full version, safetensors with whole tensors.
        deltas: the folders of all deltas from the base to the last, in any order.
        unlisted, max_memory, workers, max_growth, progress, before_publish: as for ``convert``.
        options: those of ``convert``.

    Raises PlanError for a version that is missing or there twice, VerificationError for a base that is not the one of the deltas and for checksums
    that differ, and the errors of ``convert``.

    >>> apply("served/v0", ["published/weight_v000001"], "served/v1")  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_target
    from reshard.conversion.convert import convert_targets
    from reshard.storage.local.target_checks import refuse_overlap
    from reshard.storage.location import locate

    limits = limits_of(max_memory, workers, base, target, max_growth=max_growth)
    checked = check_target(Target(target, **options), limits)
    chosen = with_deltas(base, deltas, unlisted)
    for each in chosen.deltas:
        refuse_overlap(locate(checked.target), each)
    return convert_targets(chosen, [checked], None, progress, before_publish).reports[0]


def with_deltas(base: Path, deltas: Sequence[Path], unlisted: Unlisted) -> CheckpointPath:
    """A base with the deltas over it; PlanError where none is given."""
    from reshard.formats.choose import choose_checkpoint
    from reshard.storage.location import locate

    if isinstance(deltas, str) or not isinstance(deltas, Sequence) or not deltas:
        raise PlanError(
            f"deltas is {deltas!r}; expected a list with the folder of each delta, such as ['weight_v000001']"
        )
    places = tuple(locate(path_of("delta", each)) for each in deltas)
    return replace(choose_checkpoint(base, None, None, "base", unlisted), deltas=places)
