"""The public functions that compare checkpoints, and that record digests for later comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reshard.arguments import changes_of, path_of
from reshard.engine.limits import limits_of

if TYPE_CHECKING:
    from reshard.arguments import PairRules, Path, Rules
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.verification.compare import Verification
    from reshard.verification.diff_report import DiffReport
    from reshard.verification.fingerprint import Fingerprint


def verify(
    a: Path,
    b: Path | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    select: Rules | None = None,
    drop: Rules | None = None,
    rename: PairRules | None = None,
    cast: PairRules | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compares two checkpoints bit by bit, or one with what it recorded of itself when it was written.

    ``step`` and ``item`` choose ``a``, as for ``inspect``. Every tensor and every recorded file is read, and
    all damage is in what is returned. Where ``convert`` made B of A by rules, B records them: then each
    tensor of B is compared with the one that it was made of, and where it was cast, with a cast of that
    to the last bit.

    Args:
        select, drop, rename, cast: rules by which B was made of A, as in ``reshard.ConvertOptions``, in place of all
            those that B records. None leaves B's in force where all four are None, and else means no such rule.
        max_memory, workers, progress: as for ``diff``.

    Raises where there is no checkpoint, or one that recorded nothing of itself and cannot be read;
    PlanError for rules without B, and for rules that make no sense for A.

    >>> verify("ckpt/1000", "served").dropped  # doctest: +SKIP
    ('opt_state/0/mu/w',)
    """
    from reshard.formats.choose import choose_checkpoint
    from reshard.formats.chosen import Chosen
    from reshard.verification.verify import made_by, verify_checkpoints

    limits = limits_of(max_memory, workers, a, b)
    other = None if b is None else Chosen.at(path_of("checkpoint", b))
    rules = made_by(other is not None, select, drop, rename, cast)
    return verify_checkpoints(choose_checkpoint(a, step, item), other, limits, progress, rules)


def diff(
    a: Path,
    b: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    select: Rules = (),
    drop: Rules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> DiffReport:
    """Which tensors of two checkpoints differ, and by how much, whatever their meshes and chunks.

    Reads every chunk of both, once where ``max_memory`` allows, whatever digests they recorded. A
    tensor is equal where shape, dtype and every bit are; else its differing elements are counted, and
    the largest difference and the relative norm are told (``reshard.verification.diff_report.TensorDiff``
    says exactly what). The same call gives the same
    numbers, in whatever order its tasks end; with another budget, other workers or other chunks
    the norm may differ in its last digits.

    Args:
        step, item: which step of a run, and which item of several, ``a`` is; as for ``inspect``.
        select, drop: which tensors are compared; as in ``reshard.ConvertOptions``.
        max_memory: bytes, or text such as ``"512MiB"``, of all buffers and metadata; the default is that of ``plan``.
        workers: tasks at once; the default is that of ``plan``.
        progress: called from this thread after each task.

    Raises CorruptError, naming tensor and chunk, where stored bytes are wrong; MemoryBudgetError, before
    anything is read, where the budget is too small; PlanError for a pattern that matches nothing.

    >>> found = diff("ckpt/100", "ckpt/200", select=["^params/"])  # doctest: +SKIP
    >>> found.tensors["params/kernel"].relative  # doctest: +SKIP
    """
    from reshard.formats.choose import choose_checkpoint
    from reshard.formats.chosen import Chosen
    from reshard.verification.diff import diff_checkpoints

    changes = changes_of(select, drop, (), ())
    limits = limits_of(max_memory, workers, a, b)
    one, other = choose_checkpoint(a, step, item), Chosen.at(path_of("checkpoint", b))
    return diff_checkpoints(one, other, changes, limits, progress)


def fingerprint(
    path: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    overwrite: bool = False,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Fingerprint:
    """Records digests of all tensors and files of a checkpoint in it, so that later damage is found.

    For checkpoints that carry no checksum of their data, such as stock Orbax's. Reads them once, and
    adds a slices.json beside each ``_METADATA`` and at the top; nothing else is changed, and other
    programs do not mind it. ``verify``, ``convert`` and ``restore`` compare with it from then on.

    Args:
        step, item: which step of a run, and which item of several; as for ``inspect``.
        overwrite: whether a record that is there may be replaced.
        max_memory, workers, progress: as for ``diff``.

    Raises TargetExistsError where there is a record already, CorruptError where something cannot be
    read now, StorageError where the file system refuses; then nothing is recorded.
    """
    from reshard.formats.choose import choose_checkpoint
    from reshard.verification.fingerprint import fingerprint_checkpoint

    limits = limits_of(max_memory, workers, path)
    return fingerprint_checkpoint(choose_checkpoint(path, step, item), limits, overwrite, progress)
