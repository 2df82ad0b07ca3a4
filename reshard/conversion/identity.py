"""Identity: the feature of a run that carries, computes or checks the identity of a target's weights.

``decide`` says which, from what was asked, what the source records, and whether tensors keep their bits. An identity that is carried costs
nothing: each target tensor has the digest that the identity records of its source tensor. One that is computed is of the bytes that were
written, read again at their places, before the target appears. Where its root is not the source's, a receipt says which rules made the one of the
other; where it is, the source's signature is copied. Deltas over the source record a root at most, which is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.make_plan import JointPlan, TargetPlan
from reshard.conversion.open_target import OpenTarget
from reshard.conversion.options import IdentityMode
from reshard.conversion.plan import PlannedIdentity
from reshard.conversion.report import How, IdentityReport
from reshard.conversion.run import Feature
from reshard.engine.books import TensorResult
from reshard.engine.error_context import about_target
from reshard.engine.limits import Limits
from reshard.engine.metadata_budget import left_to_read, open_to_convert
from reshard.engine.progress import Progress, Tell
from reshard.errors import FormatError, PlanError, VerificationError
from reshard.formats.base import Made, Reader, TargetCheckpoint
from reshard.formats.contents import Leaf, StoredTensor
from reshard.formats.known_formats import known_format
from reshard.formats.names import IDENTITY_NAME, RECEIPT_NAME, SIGNATURE_NAME, TREE_NAME
from reshard.formats.registry import CheckpointPath, open_written
from reshard.identity.envelope import RecordedSignature, recorded_signature
from reshard.identity.identity_file import (
    how_to_record,
    read_identity,
    render_identity,
    render_tree,
    with_nodes,
)
from reshard.identity.leaf_tree import check_installed, is_installed
from reshard.identity.read_leaves import hashing_memory
from reshard.identity.receipt import render_receipt
from reshard.identity.weights_identity import (
    TensorIdentity,
    WeightsIdentity,
    changed_once_identified,
    check_identity_of,
    identity_of,
    rest_of_leaves,
)
from reshard.planning.plans import TensorPlan
from reshard.planning.rules import rewrites
from reshard.planning.task_cost import DECODE_BYTES_PER_SECOND
from reshard.storage.location import Location, locate

HASH_BYTES_PER_SECOND = 1.7e9
"""Reading the written bytes, finding their tiles and hashing them, on one core (measured, docs/decisions/0065)."""

_HOW: Mapping[IdentityMode, How] = {"carry": "carried", "compute": "computed", "check": "checked"}


class KnownIdentity(Struct, frozen=True):
    """The treatment of the identity of a target, decided before anything is written.

    Attributes:
        mode: as asked, or the default.
        of_source: the identity that the source records, if it is needed; None for a base with deltas, whose files are of the base.
        root: the root that the last of the deltas records for the target's tensors; None without one.
        signature: of the source's root, where the target's is the same.
        warnings: a sentence each.
    """

    mode: IdentityMode = "none"
    of_source: WeightsIdentity | None = None
    root: str | None = None
    signature: RecordedSignature | None = None
    warnings: tuple[str, ...] = ()


def decide(
    asked: IdentityMode | None,
    reader: Reader,
    source: Location,
    changed: str | None,
    *,
    is_as_made: bool,
    with_tree: bool = True,
) -> KnownIdentity:
    """The treatment of an identity::

        asked     source records        tensors                        treatment
        none      any                   any                            none
        default   an identity           keep their bits                carry
        default   any other, or deltas  any                            none
        compute   any                   any                            compute; deltas' root is compared where they are as made
        carry     an identity           keep their bits                carry
        check     an identity           keep their bits                check
        check     a root of deltas      are as the deltas make them    check
        carry, check                    any other                      refused

    Args:
        source: answers from the listing of the call.
        changed: a target tensor with other bits than its source; None where there is none, or each is compared.
        is_as_made: true if the target has all tensors of the source, under their names and bit for bit.
        with_tree: true if the hashes of nodes are needed, too.

    Raises PlanError where an identity must be carried or checked and the source has none, or tensors get other bits; CorruptError
    where the source's does not fit its tensors.
    """
    if asked == "none" or (asked is None and not is_installed()):
        return KnownIdentity()
    if reader.chunks.origin is not reader.chunks:
        # No hash of a computed tensor is recorded, so that nothing can be carried.
        if asked is None:
            return KnownIdentity()
        check_installed()
        root = reader.version.root if is_as_made and reader.version is not None else None
        if asked == "compute" or (asked == "check" and root is not None):
            return KnownIdentity(asked, root=root)
        if reader.version is None:
            raise PlanError(
                f"the weights of {reader.uri} are computed as they are read, so that an identity cannot be {_HOW[asked]}: what it records is of "
                "what is stored; compute the target's (identity)"
            )
        raise PlanError(
            f"an identity of {reader.uri} with deltas over it cannot be {_HOW[asked]}: deltas record at most the root of what they make, "
            "which holds for all of its tensors under their names; compute the target's (identity)"
        )
    if asked == "compute":
        check_installed()
        return KnownIdentity("compute", _identity_of_source(reader, source))
    if asked is None:
        # Bits first: the source's identity would be read for nothing.
        found = None if changed is not None else _unasked(reader, source)
        return KnownIdentity() if found is None else KnownIdentity("carry", found)
    found = _identity_of_source(reader, source, with_tree=with_tree)
    if found is None:
        instead = (
            f"; {how_to_record(reader.uri)}, or compute"
            if locate(reader.uri).is_folder()
            else ": only a folder has a place for one; compute"
        )
        raise PlanError(
            f"{reader.uri} records no identity that could be {_HOW[asked]}{instead} the target's (identity)"
        )
    if changed is not None:
        raise PlanError(
            f"{changed!r} gets other bits than its source, so that no identity can be {_HOW[asked]}; compute the target's (identity)"
        )
    return KnownIdentity(asked, found)


def _identity_of_source(
    reader: Reader, source: Location, *, with_tree: bool = False
) -> WeightsIdentity | None:
    """The identity that a source records; None where it records none, CorruptError where it does not fit the tensors."""
    folder = source.view()
    found = read_identity(folder)
    if found is None:
        return None
    check_identity_of(reader, found)  # first: the tree is as large as identity.json says
    return with_nodes(folder, found) if with_tree else found


def _unasked(reader: Reader, source: Location) -> WeightsIdentity | None:
    """The identity of a source, read unasked, so that an error says how to do without it."""
    try:
        return _identity_of_source(reader, source, with_tree=True)
    except FormatError as error:
        said = f'{error}, or convert without it (identity="none")'
        error.args = (said, *error.args[1:])
        raise


class Identity(Feature):
    """Makes the identity of each target that asks for one, and of each by default whose source has one."""

    def __init__(self) -> None:
        self._known: dict[int, KnownIdentity] = {}

    def plan(self, plan: JointPlan, /) -> JointPlan:
        """The plans with the costs of identities. MemoryBudgetError where hashing needs more memory."""
        return replace(plan, targets=tuple(self._planned(plan, one) for one in plan.targets))

    def _planned(self, plan: JointPlan, target: TargetPlan) -> TargetPlan:
        if target.number in plan.finished:
            return target
        with about_target(target.name):
            known = _known(target, plan.chosen.root)
            if known.mode == "none":
                return target
            self._known[target.number] = known
            summary, cost = target.summary, _cost(known, target)
            totals = replace(
                summary.totals, peak_bytes=max(summary.totals.peak_bytes, cost.peak_bytes)
            )
            warnings = (*summary.warnings, *_warnings(known, target.reader, target.checkpoint))
            summary = replace(summary, identity=cost, totals=totals, warnings=warnings)
            return replace(target, summary=summary)

    def prove(
        self,
        target: OpenTarget,
        results: Sequence[TensorResult],
        limits: Limits,
        tell: Tell | None,
        /,
    ) -> Mapping[str, Any]:
        """Makes the identity of a target, and writes its files into it where it is a folder.

        Raises VerificationError where what was written has another root than the source, CorruptError where the source has other bytes
        than it records.
        """
        planned = target.planned
        known = self._known.get(planned.number)
        if known is None:
            return {}
        found = _found(target, known, results, limits, tell)
        how, made = _HOW[known.mode], planned.checkpoint.made
        if planned.file:
            return {"identity": IdentityReport(found.root, how)}
        files = identity_files(found, known.of_source, made)
        signers: tuple[str, ...] = ()
        if known.signature is not None:
            files[SIGNATURE_NAME] = known.signature.data
            signers = known.signature.signers
        for name, data in files.items():
            (target.recording_root / name).write(data)
        source = None if known.of_source is None or made is None else known.of_source.root
        source = None if source == found.root else source
        return {"identity": IdentityReport(found.root, how, source, signers)}


def identity_files(
    found: WeightsIdentity, of_source: WeightsIdentity | None, made: Made | None
) -> dict[str, bytes]:
    """The files of the identity of a target, with a receipt of the rules where they give it another root than the source's."""
    files = {TREE_NAME: render_tree(found), IDENTITY_NAME: render_identity(found)}
    if of_source is not None and made is not None and of_source.root != found.root:
        files[RECEIPT_NAME] = render_receipt(of_source.root, found.root, made.changes, made.by)
    return files


def _known(target: TargetPlan, source: Location) -> KnownIdentity:
    """The treatment of the identity of a target, with the signature that is copied."""
    plan, reader = target.plan, target.reader
    changed = next((tensor.name for tensor in plan.unlike if not _keeps_bits(tensor)), None)
    is_as_made = (
        reader.version is not None
        and len(plan.tensors) == len(reader.tensors)
        and all(_keeps_bits(each) and each.name == each.piece.source for each in plan.tensors)
    )
    known = decide(target.target.identity, reader, source, changed, is_as_made=is_as_made)
    if known.mode not in ("carry", "check") or known.of_source is None:
        return known
    # The source's signature is the target's too, where all tensors keep their names; it is copied, and not verified.
    if {tensor.name: tensor.piece.source for tensor in plan.tensors} != {
        name: name for name in known.of_source.tensors
    }:
        return known
    folder = source.view()
    try:
        found = recorded_signature(folder)
    except FormatError as error:
        return replace(known, warnings=(f"no signature is carried: {error}",))
    if found is None or found.root == known.of_source.root:
        return replace(known, signature=found)
    other = (
        f"no signature is carried: {folder / SIGNATURE_NAME} is of the root {found.root}, and the source's is {known.of_source.root}; sign "
        "the source anew (reshard sign), or remove that file"
    )
    return replace(known, warnings=(other,))


def _keeps_bits(tensor: TensorPlan) -> bool:
    """True if a target tensor is a whole source tensor, bit for bit."""
    if len(tensor.pieces) != 1:
        return False
    piece, spec = tensor.piece, tensor.target.spec
    return (
        piece.fill is None
        and not piece.is_computed
        and piece.source_view is None
        and piece.target_view is None
        and piece.axis_order == tuple(range(len(spec.shape)))
        and piece.source_box.shape == tensor.source.spec.shape == spec.shape
    )


def _cost(known: KnownIdentity, target: TargetPlan) -> PlannedIdentity:
    """The cost of an identity; MemoryBudgetError where hashing needs more memory."""
    source = None if known.of_source is None else known.of_source.root
    if known.mode in ("none", "carry"):
        return PlannedIdentity("carry", source=source)
    written = [
        StoredTensor(t.spec, t.encoding, b"", may_be_missing=False)
        for t in target.checkpoint.tensors.values()
    ]
    nbytes = sum(tensor.spec.nbytes for tensor in written)
    decoded = sum(t.spec.nbytes for t in written if t.encoding.compressor != "none")
    return PlannedIdentity(
        "check" if known.mode == "check" else "compute",
        nbytes,
        decoded,
        hashing_memory(written, target.plan.max_memory, target.plan.workers),
        nbytes / HASH_BYTES_PER_SECOND + decoded / DECODE_BYTES_PER_SECOND,
        source,
    )


def _warnings(known: KnownIdentity, source: Reader, target: TargetCheckpoint) -> Iterator[str]:
    """Reasons why a folder gets no signature of its source, or no receipt though rules give it another root."""
    if target.form.file:
        return
    yield from known.warnings
    has_rules = target.made is not None and (target.made.changes or target.made.by is not None)
    if known.mode == "compute" and known.of_source is None and has_rules:
        yield (
            f"no receipt is written, since the source records no identity; {how_to_record(source.uri)}, and convert again from there, "
            "if somebody must be able to redo the conversion"
        )


def _found(
    target: OpenTarget,
    known: KnownIdentity,
    results: Sequence[TensorResult],
    limits: Limits,
    tell: Tell | None,
) -> WeightsIdentity:
    """The identity of the target as it was asked for, compared with all that it must agree with."""
    planned, of_source = target.planned, known.of_source
    if known.mode == "carry" and of_source is not None:
        expected = _carried(planned, of_source)
        # Refuses written tensors whose digests are not those of the identity; chunks that travelled encoded keep theirs.
        for tensor, result in zip(planned.plan.tensors, results, strict=True):
            crc = expected.tensors[tensor.name].crc64nvme
            if result.target_digest not in (None, crc):
                raise changed_once_identified(
                    planned.reader.uri, tensor.piece.source, str(result.target_digest), crc
                )
        return expected
    found = identity_of(open_written(target.transaction.staged()), limits, tell, "identifying")
    if known.root is not None and found.root != known.root:
        raise VerificationError(
            f"what was written has the root {found.root}, but the last of the deltas over {planned.reader.uri!r} records {known.root}; the output "
            "was discarded; somebody changed a delta, or its identity was of other weights: publish a full version, or make the deltas again"
        )
    if of_source is None:
        return found
    if known.mode == "check":
        expected = _carried(planned, of_source)
        if found.root != expected.root:
            other = next(_others(found, expected.tensors, {n: n for n in expected.tensors}), "")
            raise VerificationError(
                f"what was written has the root {found.root}, but the source's identity gives {expected.root} (the first tensor that differs "
                f"is {other!r}); the output was discarded; check this machine's memory and disk, then run again"
            )
    else:
        _refuse_other_source(planned, of_source, found, target.books.source_digests())
    return found


def _carried(target: TargetPlan, of_source: WeightsIdentity) -> WeightsIdentity:
    origins = {tensor.name: tensor.piece.source for tensor in target.plan.tensors}
    return carried_identity(origins, target.checkpoint, of_source)


def carried_identity(
    origins: Mapping[str, str], checkpoint: TargetCheckpoint, of_source: WeightsIdentity
) -> WeightsIdentity:
    """The identity that a target must have whose tensors keep their bits; ``origins``: the source tensor of each, by its new name."""
    tensors, nodes = [], {}
    for name, origin in origins.items():
        source = of_source.tensors[origin]
        tensors.append(
            TensorIdentity(name, source.dtype, source.shape, source.top, source.crc64nvme)
        )
        nodes[name] = of_source.nodes[origin]
    has_place = not known_format(checkpoint.form.format).about.tensors_only
    leaves: Sequence[Leaf] = checkpoint.leaves if has_place else ()
    return WeightsIdentity.of(tensors, nodes, rest_of_leaves(leaves))


def _refuse_other_source(
    target: TargetPlan,
    of_source: WeightsIdentity,
    found: WeightsIdentity,
    seen: Mapping[tuple[int, str], str],
) -> None:
    """Refuses a source whose identity is not that of the tensors that were read, since a receipt names its root."""
    uri = target.reader.uri
    for (_, name), digest in seen.items():
        if digest != of_source.tensors[name].crc64nvme:
            raise changed_once_identified(uri, name, digest, of_source.tensors[name].crc64nvme)
    for tensor in target.plan.tensors:
        if _keeps_bits(tensor):  # those that travelled encoded were not seen
            now, then = found.tensors[tensor.name], of_source.tensors[tensor.piece.source]
            if now.top != then.top:
                raise changed_once_identified(uri, then.name, now.crc64nvme, then.crc64nvme)


def recorded_report(finished: Reader) -> IdentityReport | None:
    """The identity that a finished target records; None where it records none."""
    folder = locate(finished.uri).view()
    found = read_identity(folder)
    signers = () if found is None else _signers(folder, found.root)
    return None if found is None else IdentityReport(found.root, "recorded", signers=signers)


def _signers(folder: Location, root: str) -> tuple[str, ...]:
    """The signers of a root, from the envelope in a folder; none where it is unreadable or of another root."""
    try:
        found = recorded_signature(folder)
    except FormatError:
        return ()
    return () if found is None or found.root != root else found.signers


def finished_identity(
    chosen: CheckpointPath,
    target: CheckedTarget,
    finished: Reader,
    progress: Callable[[Progress], None] | None,
) -> IdentityReport | None:
    """The identity of a finished target, as this run asks for it; for compute and check all of the target is read.

    Raises VerificationError where the target has another root than it records, or with check tensors that are not the source's;
    PlanError with check where the source records nothing to compare with.
    """
    if target.identity == "none":
        return None
    if target.identity not in ("compute", "check"):
        return recorded_report(finished)
    folder = locate(finished.uri).view()
    recorded = read_identity(folder)
    readers, origins, known = [finished], None, KnownIdentity()
    if target.identity == "check":
        reader = open_to_convert(chosen, target.max_memory)
        readers.append(reader)
        origins = None if target.given_map is not None else _origins(reader, target)
        as_made = {"is_as_made": origins == {name: name for name in reader.tensors}}
        known = decide("check", reader, chosen.root, None, with_tree=False, **as_made)
    limits = Limits(left_to_read(target.max_memory, *readers), target.workers)
    found = identity_of(finished, limits, progress, "identifying")
    if recorded is not None and recorded.root != found.root:
        raise VerificationError(
            f"{finished.uri!r} was finished before, and what it holds has the root {found.root}, but its {IDENTITY_NAME} records "
            f"{recorded.root}: its weights or that file changed since; make it again (overwrite)"
        )
    if known.mode == "check":
        _refuse_other_weights(finished, found, known, readers[-1].uri, origins)
    return IdentityReport(found.root, _HOW[target.identity], signers=_signers(folder, found.root))


def _origins(reader: Reader, target: CheckedTarget) -> dict[str, str]:
    """The source tensor of each target tensor, by the rules of the conversion."""
    kept = rewrites(
        target.changes,
        [leaf.name for leaf in reader.leaves],
        {name: tensor.spec for name, tensor in reader.tensors.items()},
        {name for name, tensor in reader.tensors.items() if tensor.is_key},
    )
    return {each.target: each.source for each in kept if each.source in reader.tensors}


def _refuse_other_weights(
    finished: Reader,
    found: WeightsIdentity,
    known: KnownIdentity,
    source: str,
    origins: Mapping[str, str] | None,
) -> None:
    """Refuses a finished target with other weights than its source records.

    ``origins``: the source tensor of each target tensor; None where a map made them.
    """
    if known.of_source is None:
        if found.root != known.root:
            raise VerificationError(
                f"{finished.uri!r} was finished before, and what it holds has the root {found.root}, but the last of the deltas over "
                f"{source!r} records {known.root}; make it again (overwrite)"
            )
        return
    other = next(_others(found, known.of_source.tensors, origins), None)
    if other is not None:
        raise VerificationError(
            f"{finished.uri!r} was finished before, and the identity of the source {source!r} has no tensor with the dtype, "
            f"shape and bits of its {other!r}; make it again (overwrite), or compute its root alone (identity) where it was cast or "
            "computed by a map"
        )


def _others(
    found: WeightsIdentity, source: Mapping[str, TensorIdentity], origins: Mapping[str, str] | None
) -> Iterator[str]:
    """The tensors of a target that differ from those of its source, and those that it lacks."""
    if origins is None:  # a map may take any of them
        known = {tensor.entry for tensor in source.values()}
        yield from (name for name, tensor in found.tensors.items() if tensor.entry not in known)
        return
    for name in {**origins, **found.tensors}:
        tensor, of_source = found.tensors.get(name), source.get(origins.get(name, ""))
        if tensor is None or of_source is None or tensor.entry != of_source.entry:
            yield name
