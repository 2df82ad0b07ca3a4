"""The public functions that make deltas and apply them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from reshard.api.sources import with_computed
from reshard.arguments import (
    DeltaChecksum,
    DeltaEncoding,
    DeltaReceiver,
    check_positive,
    path_of,
    takes_options,
)
from reshard.conversion.options import Target
from reshard.engine.limits import limits_of
from reshard.errors import PlanError

if TYPE_CHECKING:
    from reshard.arguments import CastRules, Dequantized, MapLike, PairRules, Path, Rules, Unlisted
    from reshard.conversion.options import ConvertOptions, LayoutLike
    from reshard.conversion.report import ConversionReport
    from reshard.deltas.report import DeltaReport
    from reshard.deltas.versions import CleanedVersions, VersionInfo
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.formats.registry import CheckpointPath


def delta(
    old: Path,
    new: Path,
    target: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    layout: LayoutLike = None,
    select: Rules | None = None,
    drop: Rules | None = None,
    rename: PairRules | None = None,
    cast: CastRules | None = None,
    map: MapLike = None,  # noqa: A002  the name of the option
    sizes: Mapping[str, int] | None = None,
    reverse: bool = False,
    base_version: int | str | None = None,
    receiver: DeltaReceiver = "pull_weights",
    encoding: DeltaEncoding = "xor",
    checksum: DeltaChecksum | None = None,
    file_bytes: int | str | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
    again: bool = False,
) -> DeltaReport:
    """Writes a delta from ``old`` to the result of ``convert`` for ``new``, in the layout that miles, slime, SGLang's ``pull_weights``
    and ModelExpress read.

    Both are read in lock step, with any meshes and formats, and elements are compared by their bytes. Tensors that did not change are not
    in the delta. ``target`` appears whole or not at all.

    Args:
        old: the version before it: already converted, or an earlier step, to which the same map and rules are applied.
        new: the step to publish; ``step`` and ``item`` choose it, as for ``inspect``.
        target: the folder of the new version; its name has the number, such as ``published/weight_v000007``.
        unlisted: of both, as for ``inspect``.
        layout: a layout file, for its rules and map; its axes split nothing, since the tensors of a delta are whole.
        select, drop, rename, cast, map, sizes, reverse: as in ``reshard.ConvertOptions``, for a conversion to safetensors.
        base_version: of ``old``. The default is that of its index or its folder's name, else the number before that of ``target``.
        receiver: ``"modelexpress"`` takes any name of the target's folder as the id of the version, has ``"xor"`` and ``"adler32"`` only,
            and refuses an index that lists more: tensors that no delta changes are not proved then.
        encoding: ``"xor"`` is smaller. Some receivers decompress ``"overwrite"`` faster; a tensor of 4 GiB or more is refused then.
        checksum: of whole tensors; ``"xxh3-128"`` by default, ``"adler32"`` for ModelExpress.
        file_bytes: most bytes of payloads in one file; 1 GB by default, since receivers read each file whole.
        max_memory, workers, progress: as for ``diff``. A tensor larger than a quarter of the memory is made in parts, for which its source
            may be read again.
        before_publish: called with the target's path when all files are written, right before it appears; if it raises, nothing is
            published.
        again: an earlier call with the same arguments may have published the version before it was killed. Then both are read again, the version
            is compared with what this call would publish, and stays.

    Raises PlanError for tensors that were added, removed or reshaped, or that changed their dtype: then a full version is due; also if
    ``old`` may be either a step or converted already; VerificationError if tensors of ``new`` differ that the map ties, and if the
    base version lies beside ``target`` as a delta and ``old`` differs from its result;
    SourceChangedError if ``old`` or ``new`` changes meanwhile; TargetExistsError and TargetBusyError as ``convert`` does.

    >>> delta("served/v6", "ckpt/2000", "published/weight_v000007", map="to_hf.yaml")  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_target
    from reshard.deltas.declared_options import OPTIONS, default_checksum
    from reshard.deltas.delta_request import DeltaRequest
    from reshard.deltas.make_delta import make_delta
    from reshard.formats.choose import choose_checkpoint

    written = {
        "receiver": receiver,
        "encoding": encoding,
        "checksum": default_checksum(receiver) if checksum is None else checksum,
        "file_bytes": file_bytes,
    }
    form = {name: OPTIONS[name].parse(name, value) for name, value in written.items()}
    if receiver == "modelexpress":
        _check_for_modelexpress(form["encoding"], form["checksum"])
    limits = limits_of(max_memory, workers, old, new, target)
    rules: dict[str, Any] = {"select": select, "drop": drop, "rename": rename, "cast": cast}
    mapped: dict[str, Any] = {"map": map, "sizes": sizes, "reverse": reverse}
    given = {name: value for name, value in {**rules, **mapped}.items() if value is not None}
    options = check_target(Target("", layout=layout, **given), limits)
    request = DeltaRequest(
        choose_checkpoint(old, None, None, "old checkpoint", unlisted),
        choose_checkpoint(new, step, item, "new checkpoint", unlisted),
        path_of("target", target),
        options.given_map,
        options.changes,
        base_version=_checked_version(base_version),
        again=again,
        **form,
    )
    return make_delta(request, limits, progress, before_publish)


def inspect_versions(path: Path) -> tuple[VersionInfo, ...]:
    """Describes the versions of weights in a folder, or one delta: base, size, changed bytes, and whether the newest needs it;
    for one delta also the changes of each tensor.

    Reads metadata only.

    Raises NotACheckpointError if there are none.

    >>> [one.name for one in inspect_versions("published") if not one.is_needed]  # doctest: +SKIP
    """
    from reshard.deltas.versions import versions_of
    from reshard.storage.location import locate

    text = path_of("folder", path)
    return versions_of(text, locate(text))


def clean_versions(path: Path, keep: int, *, dry_run: bool = False) -> CleanedVersions:
    """Removes the versions in a folder that the newest ``keep`` do not need, and leftovers of interrupted runs up to the newest.

    A delta needs its base version, and so back to a full version. The latest version is removed first, so that a killed call leaves no
    delta without its base; the next call removes the rest. Folders later than the newest complete version are not touched: a run may be
    writing them.

    Args:
        path: the folder of the versions, on a disk or in a bucket.
        keep: the number of newest versions to keep, at least 1.
        dry_run: only list the versions that would be removed.

    Raises NotACheckpointError without versions, CorruptError for a version that cannot be read, TargetBusyError if a run is writing one
    that would be removed. Versions removed before the error stay removed.

    >>> clean_versions("published", 3).nbytes  # doctest: +SKIP
    """
    from reshard.deltas.versions import prune_versions
    from reshard.storage.location import locate

    check_positive("keep", keep, "how many of the newest versions are kept", has_default=False)
    text = path_of("folder", path)
    return prune_versions(text, locate(text), keep, dry_run=dry_run)


def _checked_version(version: Any) -> str | None:
    if version is not None and (isinstance(version, bool) or not isinstance(version, int | str)):
        raise PlanError(
            f"base_version is {version!r}; expected the number of a version, from 0, or its id; leave it out for the default"
        )
    return None if version is None else str(version)


def _check_for_modelexpress(encoding: DeltaEncoding, checksum: DeltaChecksum) -> None:
    """Raises PlanError for a form that this receiver does not read."""
    if (encoding, checksum) != ("xor", "adler32"):
        raise PlanError(
            f"ModelExpress reads deltas of the encoding xor with checksums of adler32, but {encoding} and {checksum} were asked for; leave both out"
        )


@takes_options(Target)
def apply(
    base: Path,
    deltas: Sequence[Path],
    target: Path,
    *,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
    quantize_like: Path | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    max_growth: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    before_publish: Callable[[str], None] | None = None,
    **options: Unpack[ConvertOptions],
) -> ConversionReport:
    """Folds deltas into a full checkpoint: converts ``base``, with all deltas applied, to ``target``.

    It is a ``convert`` in every other way: any format, mesh and place, in one pass and bounded memory; ``target`` appears whole or not at all, and
    the same call resumes an interrupted run. Each delta's checksums are compared. Deltas of ``reshard.delta`` list the checksums of all
    tensors, so unchanged tensors are compared too.

    Args:
        base: a full version, safetensors with whole tensors.
        deltas: the folders of all deltas from the base to the last, in any order.
        unlisted, max_memory, workers, max_growth, progress, before_publish: as for ``convert``.
        dequantize, lora, quantize_like: of the last version; as for ``convert``.
        options: those of ``convert``.

    Raises PlanError for a version that is missing or there twice, VerificationError for a base that is not the one of the deltas and for checksums
    that differ, and the errors of ``convert``.

    >>> apply("served/v0", ["published/weight_v000001"], "served/v1")  # doctest: +SKIP
    """
    from reshard.conversion.check_target import check_target
    from reshard.conversion.convert import convert_targets
    from reshard.formats.choose import choose_checkpoint

    chosen = with_deltas(choose_checkpoint(base, None, None, "base", unlisted), deltas)
    chosen = with_computed(chosen, dequantize, lora, quantize_like)
    limits = limits_of(max_memory, workers, base, *deltas, target, max_growth=max_growth)
    checked = check_target(Target(target, **options), limits)
    return convert_targets(chosen, [checked], None, progress, before_publish).reports[0]


def with_deltas(base: CheckpointPath, deltas: Sequence[Path]) -> CheckpointPath:
    """A base with the deltas over it; PlanError without a delta."""
    from reshard.formats.delta.chain import Deltas
    from reshard.storage.location import locate

    folders = tuple(locate(path_of("delta", each)) for each in _listed(deltas))
    return replace(base, computed=(Deltas(folders),))


def _listed(deltas: Sequence[Path]) -> Sequence[Path]:
    if isinstance(deltas, str) or not isinstance(deltas, Sequence) or not deltas:
        raise PlanError(
            f"deltas is {deltas!r}; expected a list with the folder of each delta, such as ['weight_v000001']"
        )
    return deltas
