"""The public function that merges checkpoints: averages of several, and what they change of a base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import replace

from reshard.answers.record import counted
from reshard.api.conversion import converted
from reshard.arguments import takes_options
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from reshard.arguments import DTypeLike, MapLike, Path, Unlisted
    from reshard.conversion.options import ConvertOptions
    from reshard.conversion.report import ConversionReport
    from reshard.engine.progress import Progress


@takes_options(Target)
def merge(
    sources: Sequence[Path | tuple[Path, MapLike]],
    target: Path,
    *,
    weights: Sequence[float] | str | None = None,
    ema: float | None = None,
    last: int | None = None,
    base: Path | tuple[Path, MapLike] | None = None,
    scale: float | None = None,
    from_: int | None = None,
    dtype: DTypeLike | None = None,
    unlisted: Unlisted = "leave",
    max_memory: int | str | None = None,
    workers: int | None = None,
    max_growth: float | None = None,
    executor: Executor | None = None,
    parts: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
    **options: Unpack[ConvertOptions],
) -> ConversionReport:
    """Averages checkpoints into one, in one pass, and converts the average to ``target``.

    It is a ``convert`` in every other way: any format, mesh and place, bounded memory; ``target`` appears whole or not at all, and the same call
    resumes an interrupted run. Floats are summed in float64 and rounded once: the result has the same bits in whichever order the
    checkpoints are given. Everything else (integers, strings, PRNG keys) must be equal in all of them, or is taken from one.

    Args:
        sources: the checkpoints, the oldest first. Each is a path, or a pair of a path and a map that makes its tensors have the names and
            shapes of the others. The first gives names, dtypes and metadata. ``run/{8000..10000..500}`` stands for several.
        weights: a number for each, which are divided by their sum; or ``"linear"`` or ``"minus-sqrt"``, the weights of an average that stands for
            a decay of the learning rate. Equal by default.
        ema: the decay of a moving average over the checkpoints, such as 0.999, in place of weights.
        last: the number of steps to average, the last of the one source, which is then the folder of a run.
        base: for task arithmetic, the checkpoint that all were trained from; makes ``base + scale * sum(weight * (source - base))``, with weights
            as they are given, 1 by default.
        scale: of task arithmetic, 1 by default.
        from_: the number, counted from 1, of the source from which everything that is no float is taken.
        dtype: of averaged tensors, by default that of the first. Floats are rounded to it once; ``cast`` would round them again.
        unlisted, max_memory, workers, max_growth, executor, parts, progress, before_publish: as for ``convert``.
        options: those of ``convert``.

    Raises PlanError for checkpoints of other names or shapes and for weights that make no average, VerificationError for integers that differ, and
    the errors of ``convert``.

    >>> merge(["run/{8000..10000..500}"], "averaged", weights="minus-sqrt", from_=5)  # doctest: +SKIP
    """
    from reshard.arithmetic.merge import Merge, is_averaged
    from reshard.conversion.check_target import check_target
    from reshard.formats.choose import choose_checkpoint

    arithmetic = {"weights": weights, "ema": ema, "scale": scale, "from_": from_, "dtype": dtype}
    places = {"sources": sources, "last": last, "base": base, "unlisted": unlisted}
    made = Merge.asked({**arithmetic, **places})
    paths = [each.path for each in (*made.sources, *filter(None, [made.base]))]
    first = choose_checkpoint(paths[0], None, None, "source", unlisted)
    limits = limits_of(max_memory, workers, *paths, target, max_growth=max_growth)
    asked = Target(target, **options)
    checked = check_target(asked, limits)
    how = (limits, executor, parts, progress, before_publish)
    report = converted(replace(first, computed=(made,)), [asked], [checked], *how).reports[0]
    if report.already_done:
        return report
    averaged = sum(is_averaged(tensor.source_dtype or "int64") for tensor in report.tensors)
    checkpoints = f"{counted(len(made.sources), 'checkpoint')}, {made.weights.text}"
    text = f"averaged {counted(averaged, 'tensor')} of {checkpoints}; copied {len(report.tensors) - averaged:,}"
    return replace(report, merged=text)
