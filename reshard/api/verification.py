"""The public functions that compare checkpoints, and that record digests for later comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from reshard.api.deltas import with_deltas
from reshard.api.sources import source_of, with_computed
from reshard.arguments import changes_of, check_missing_chunks, path_of
from reshard.engine.limits import limits_of
from reshard.errors import PlanError

if TYPE_CHECKING:
    from reshard.arguments import (
        CastRules,
        Dequantized,
        MapLike,
        MissingChunks,
        PairRules,
        Path,
        Rules,
        Unlisted,
    )
    from reshard.engine.limits import Limits
    from reshard.engine.progress import Progress
    from reshard.formats.choose import Step
    from reshard.formats.registry import CheckpointPath
    from reshard.identity.envelope import SignedAs
    from reshard.verification.fingerprint import Fingerprint
    from reshard.verification.reports import DiffReport, Verification


def verify(
    a: Path,
    b: Path | None = None,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
    quantize_like: Path | None = None,
    select: Rules | None = None,
    drop: Rules | None = None,
    rename: PairRules | None = None,
    cast: CastRules | None = None,
    map: MapLike = None,  # noqa: A002  the name of the option
    sizes: Mapping[str, int] | None = None,
    reverse: bool = False,
    missing_chunks: MissingChunks | None = None,
    identity: str | Path | None = None,
    key: Path | None = None,
    name: str | None = None,
    min_version: int | str | None = None,
    receipt: Path | None = None,
    deltas: Sequence[Path] | None = None,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compares two checkpoints bit by bit, or one checkpoint with the digests that it recorded when it was written.

    ``step`` and ``item`` choose ``a``, as for ``inspect``; ``unlisted`` is for both. Every tensor and every recorded file is read, and the result
    lists all damage. Strings, None and empty containers are compared too, unless a format has no place for them. If ``convert`` made B from A
    by rules, B has a record of them: each tensor of B is compared with the tensor that it was made from, and if it was cast, with the result of
    the same cast.

    Args:
        dequantize, lora, quantize_like: the options by which B was made from A, as for ``convert``. Without any, ``dequantize`` is taken
            from B's record; no place that the record names is read.
        select, drop, rename, cast: the rules by which B was made from A, as in ``reshard.ConvertOptions``. If one of them is
            given, B's record of rules is not used.
        map, sizes, reverse: the map by which B was made from A, as in ``reshard.ConvertOptions``: each tensor of B is compared with
            the map's result for A, and nothing is written. Without it the map that B records is used, if B was made from A.
        missing_chunks: ``"refuse"`` counts every tensor with a chunk that is not stored as damaged; ``"warn"`` and ``"allow"``
            take the fill value, with or without a warning. None, the default, refuses if the checkpoint records that it
            stores every chunk, and else warns.
        identity: the root that the weights of ``a`` must have, 64 hex digits, or an ``identity.json`` or a folder with one. The root
            is computed anew; a record beside the weights proves nothing.
        key: a PEM file with the public key that signed the root, or its text (``reshard.sign``); the signature is in the folder that
            ``identity`` names, else in the checkpoint.
        name, min_version: of the model, as ``reshard.sign`` signs them: an older checkpoint is refused, even with a valid signature of its
            own. Whole numbers compare as numbers; any other version must be equal.
        receipt: an ``identity.receipt.json``, or a folder with one, such as B: the roots of A and B must be those that it names, and B
            must be the result of its rules for A. Both roots are computed anew.
        deltas: the folders of deltas over ``a``, as for ``reshard.apply``: the resulting version is verified, and nothing is
            written. Without ``b`` every checksum that they record is compared.
        max_memory, workers, progress: as for ``diff``.

    Raises VerificationError if the key has not signed the weights' identity, or as another model or an earlier version; NotACheckpointError if
    there is no checkpoint; PlanError for rules without B, and for rules that do not fit A. A checkpoint that cannot be read and has no record raises
    the error of reading it.

    >>> verify("ckpt/1000", "served").dropped  # doctest: +SKIP
    ('opt_state/0/mu/w',)
    """
    from reshard.formats.choose import choose_checkpoint
    from reshard.formats.registry import CheckpointPath
    from reshard.identity.envelope import wanted_of
    from reshard.identity.receipt import read_receipt
    from reshard.maps.given_map import map_of
    from reshard.storage.location import locate
    from reshard.verification.verify import given_rules, verify_checkpoints
    from reshard.verification.verify_identity import verify_receipt

    check_missing_chunks(missing_chunks)
    limits = limits_of(max_memory, workers, a, b)
    other = None if b is None else CheckpointPath.at(path_of("checkpoint", b), unlisted)
    given_map = map_of(map, sizes, reverse)
    if given_map is not None and other is None:
        raise PlanError(
            "map says how B was made of A, but there is no B; name it, or leave it out (map)"
        )
    rules = given_rules(other is not None, select, drop, rename, cast)
    chosen = choose_checkpoint(a, step, item, unlisted=unlisted)
    if deltas is not None:
        chosen = with_deltas(chosen, deltas)
    chosen = with_computed(chosen, dequantize, lora, quantize_like)
    wanted = wanted_of(name, min_version, is_signed=key is not None)
    if identity is not None or key is not None:
        if other is not None:
            raise PlanError(
                "an identity and a key are for one checkpoint; leave out B, or compare A with B without them (identity, key)"
            )
        if receipt is not None:
            raise PlanError(
                "a receipt names the roots that are compared; leave out identity and key, or verify each checkpoint by itself "
                "(receipt)"
            )
        return _verify_identity(chosen, identity, key, wanted, limits, progress)
    if receipt is not None:
        if other is None:
            raise PlanError(
                "a receipt says how B was made of A, but there is no B; name it, or leave it out (receipt)"
            )
        if rules is not None or given_map is not None:
            raise PlanError(
                "a receipt has the rules by which B was made; leave out select, drop, rename, cast and map (receipt)"
            )
        found = read_receipt(locate(path_of("receipt", receipt)))
        return verify_receipt(chosen, other, found, limits, progress, missing_chunks)
    return verify_checkpoints(chosen, other, limits, progress, rules, missing_chunks, given_map)


def _verify_identity(
    chosen: CheckpointPath,
    identity: str | Path | None,
    key: Path | None,
    wanted: SignedAs,
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> Verification:
    from reshard.identity.envelope import check_signed_as
    from reshard.identity.keys import PublicKey, public_key_of, read_public_key
    from reshard.storage.location import locate
    from reshard.verification.verify_identity import expected_identity, verify_identity

    public: PublicKey | None = None
    if isinstance(key, str) and key.lstrip().startswith("-----BEGIN"):
        public = public_key_of(key.encode(errors="replace"), "the key")
    elif key is not None:
        public = read_public_key(locate(path_of("key", key)))
    given = None if identity is None else path_of("identity", identity)
    expected = expected_identity(chosen, given, public)
    check_signed_as(wanted, expected.said)
    return verify_identity(chosen, expected, limits, progress)


def diff(
    a: Path,
    b: Path,
    *,
    step: Step | None = None,
    item: str | None = None,
    unlisted: Unlisted = "leave",
    dequantize: Dequantized | None = None,
    lora: Sequence[Path] | None = None,
    select: Rules = (),
    drop: Rules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> DiffReport:
    """Reports which tensors of two checkpoints differ, and by how much. Their meshes and chunks may differ.

    Reads every chunk of both, once if ``max_memory`` allows it, and uses no recorded digests. Tensors are equal if
    shape, dtype and every bit are. For others the report has the number of elements that differ, the largest difference
    and the relative norm (``reshard.TensorDiff`` defines them). The same call always gives the same
    numbers; with another budget, other workers or other chunks the norm may differ in its last digits.

    Args:
        step, item: the step of a run and the item of several to take for ``a``; as for ``inspect``.
        unlisted: for both; as for ``inspect``.
        dequantize, lora: of ``a``, as for ``convert``: the tensors that they make are compared.
        select, drop: choose the tensors to compare, as in ``reshard.ConvertOptions``.
        max_memory: bytes, or text such as ``"512MiB"``, of all buffers and metadata; the default is that of ``plan``.
        workers: the number of tasks that run at once; the default is that of ``plan``.
        progress: called after each task, from the calling thread.

    Raises CorruptError, naming tensor and chunk, if stored bytes are wrong; MemoryBudgetError, before anything is read,
    if the budget is too small; PlanError for a pattern that matches nothing.

    >>> found = diff("ckpt/100", "ckpt/200", select=["^params/"])  # doctest: +SKIP
    >>> found.tensors["params/kernel"].relative  # doctest: +SKIP
    """
    from reshard.formats.registry import CheckpointPath
    from reshard.verification.diff import diff_checkpoints

    changes = changes_of(select, drop, (), ())
    limits = limits_of(max_memory, workers, a, b)
    one = source_of(a, step, item, unlisted, dequantize, lora, what="checkpoint")
    other = CheckpointPath.at(path_of("checkpoint", b), unlisted)
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
    """Records the digests of all tensors and files in a checkpoint, so that later damage is found.

    For checkpoints without checksums of their data, such as stock Orbax's. Reads the checkpoint once, and adds a
    slices.json beside each ``_METADATA`` and at the top. Nothing else is changed, and other programs ignore the file.
    From then on ``verify``, ``convert`` and ``restore`` compare their input with it. The digests find accidents; ``identify``
    makes hashes against deliberate changes.

    Args:
        step, item: the step of a run and the item of several; as for ``inspect``.
        overwrite: replace an existing record.
        max_memory, workers, progress: as for ``diff``.

    Raises TargetExistsError if there is a record already, CorruptError if a chunk or file cannot be read, StorageError
    if the file system refuses. Then nothing is recorded.
    """
    from reshard.formats.choose import choose_checkpoint
    from reshard.verification.fingerprint import fingerprint_checkpoint

    limits = limits_of(max_memory, workers, path)
    return fingerprint_checkpoint(choose_checkpoint(path, step, item), limits, overwrite, progress)
