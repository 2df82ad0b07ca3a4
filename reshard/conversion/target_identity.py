"""The identity of a target's weights: carried from the source, computed from what was written, or checked against the source's.

An identity that is carried costs nothing: each target tensor has the digest that the identity records of its source tensor. One that
is computed is of the bytes that were written, read again at their places, before the target appears. Where its root is not the
source's, a receipt says which rules made the one of the other; where it is, the source's signature is copied. Deltas over the source record a
root at most, which is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reshard.conversion.known_identity import keeps_bits
from reshard.conversion.options import IdentityMode
from reshard.conversion.report import How, IdentityReport
from reshard.conversion.target_job import OpenTarget, TargetJob
from reshard.engine.books import TensorResult
from reshard.engine.limits import Limits
from reshard.engine.progress import Progress
from reshard.errors import VerificationError
from reshard.formats.contents import Leaf
from reshard.formats.known_formats import known_format
from reshard.formats.names import IDENTITY_NAME, RECEIPT_NAME, SIGNATURE_NAME, TREE_NAME
from reshard.formats.registry import open_written
from reshard.identity.identity_file import render_identity, render_tree
from reshard.identity.receipt import render_receipt
from reshard.identity.weights_identity import (
    TensorIdentity,
    WeightsIdentity,
    changed_once_identified,
    identity_of,
    rest_of_leaves,
)


def finish_identity(
    target: OpenTarget,
    results: Sequence[TensorResult],
    seen: Mapping[tuple[int, str], str],
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> IdentityReport | None:
    """Makes the identity of a target that is complete, and writes its files into it where it is a folder.

    Args:
        seen: the digests of source tensors (``Books.source_digests``).

    Raises VerificationError where what was written has another root than the source, CorruptError where the source has other bytes
    than it records.
    """
    known = target.job.weights
    if known.mode == "none":
        return None
    found = _found(target, results, seen, limits, progress)
    files = {TREE_NAME: render_tree(found), IDENTITY_NAME: render_identity(found)}
    source = None if known.of_source is None else known.of_source.root
    made = target.job.checkpoint.made
    if source not in (None, found.root) and made is not None and not target.job.file:
        files[RECEIPT_NAME] = render_receipt(source, found.root, made.changes, made.by)
    else:
        source = None
    if target.job.file:
        return IdentityReport(found.root, _HOW[known.mode])
    signers: tuple[str, ...] = ()
    if known.signature is not None:
        files[SIGNATURE_NAME] = known.signature.data
        signers = known.signature.signers
    for name, data in files.items():
        (target.recording_root / name).write(data)
    return IdentityReport(found.root, _HOW[known.mode], source, signers)


_HOW: Mapping[IdentityMode, How] = {"carry": "carried", "compute": "computed", "check": "checked"}


def _found(
    target: OpenTarget,
    results: Sequence[TensorResult],
    seen: Mapping[tuple[int, str], str],
    limits: Limits,
    progress: Callable[[Progress], None] | None,
) -> WeightsIdentity:
    """The identity of the target as it was asked for, compared with all that it must agree with."""
    job, known = target.job, target.job.weights
    if known.mode == "carry" and known.of_source is not None:
        expected = _carried(job, known.of_source)
        _refuse_other_digests(job, expected, results)
        return expected
    found = identity_of(open_written(target.transaction.staged()), limits, progress, "identifying")
    if known.root is not None and found.root != known.root:
        raise _another_than_recorded(job, found.root, known.root)
    if known.of_source is None:
        return found
    if known.mode == "check":
        expected = _carried(job, known.of_source)
        if found.root != expected.root:
            raise _another_root(found, expected)
    else:
        _refuse_other_source(job, known.of_source, found, seen)
    return found


def _carried(job: TargetJob, of_source: WeightsIdentity) -> WeightsIdentity:
    """The identity that the target must have: its tensors are those of the source, perhaps under other names."""
    tensors, nodes = [], {}
    for tensor in job.plan.tensors:
        source = of_source.tensors[tensor.piece.source]
        tensors.append(
            TensorIdentity(tensor.name, source.dtype, source.shape, source.top, source.crc64nvme)
        )
        nodes[tensor.name] = of_source.nodes[tensor.piece.source]
    return WeightsIdentity.of(tensors, nodes, rest_of_leaves(_other_leaves(job)))


def _other_leaves(job: TargetJob) -> Sequence[Leaf]:
    has_place = not known_format(job.checkpoint.form.format).about.tensors_only
    return job.checkpoint.leaves if has_place else ()


def _refuse_other_digests(
    job: TargetJob, expected: WeightsIdentity, results: Sequence[TensorResult]
) -> None:
    """Refuses written tensors whose digests are not those of the identity; chunks that travelled encoded keep theirs."""
    for tensor, result in zip(job.plan.tensors, results, strict=True):
        known = expected.tensors[tensor.name].crc64nvme
        if result.target_digest not in (None, known):
            raise changed_once_identified(
                job.reader.uri, tensor.piece.source, str(result.target_digest), known
            )


def _refuse_other_source(
    job: TargetJob,
    of_source: WeightsIdentity,
    found: WeightsIdentity,
    seen: Mapping[tuple[int, str], str],
) -> None:
    """Refuses a source whose identity is not that of the tensors that were read, since a receipt names its root."""
    for (_, name), digest in seen.items():
        if digest != of_source.tensors[name].crc64nvme:
            raise changed_once_identified(
                job.reader.uri, name, digest, of_source.tensors[name].crc64nvme
            )
    for tensor in job.plan.tensors:
        if keeps_bits(tensor):  # those that travelled encoded were not seen
            now, then = found.tensors[tensor.name], of_source.tensors[tensor.piece.source]
            if now.top != then.top:
                raise changed_once_identified(
                    job.reader.uri, then.name, now.crc64nvme, then.crc64nvme
                )


def _another_than_recorded(job: TargetJob, found: str, recorded: str) -> VerificationError:
    return VerificationError(
        f"what was written has the root {found}, but the last of the deltas over {job.reader.uri!r} records {recorded}; the output was discarded; "
        "somebody changed a delta, or its identity was of other weights: publish a full version, or make the deltas again"
    )


def _another_root(found: WeightsIdentity, expected: WeightsIdentity) -> VerificationError:
    other = next(
        (
            n
            for n, t in expected.tensors.items()
            if found.tensors.get(n) is None or found.tensors[n].entry != t.entry
        ),
        "",
    )
    return VerificationError(
        f"what was written has the root {found.root}, but the source's identity gives {expected.root} (the first tensor that differs "
        f"is {other!r}); the output was discarded; check this machine's memory and disk, then run again"
    )
