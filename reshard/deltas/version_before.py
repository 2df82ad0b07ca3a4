"""The version beside a target on which its delta will stand: OLD must give the weights of that version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.deltas.payloads import TensorPayload
from reshard.engine.metadata_budget import check_leaves_to_read
from reshard.errors import VerificationError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.delta.index import DeltaIndex
from reshard.formats.delta.read_delta import holds_delta, open_delta
from reshard.formats.registry import open_reader
from reshard.storage.location import Location

_REMEDY = "give that version itself, or the step that it was made of with the same rules, or publish a full version"


class FullBefore(Struct, frozen=True):
    """A full version beside the target, which OLD is not itself.

    Attributes:
        digests: of its tensors, as ``fingerprint`` records them; None for one without.
    """

    place: Location
    digests: Mapping[str, str | None]

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning about tensors that were not compared."""
        count = sum(digest is None for digest in self.digests.values())
        if not count:
            return ()
        return (
            f"{self.place} records no digests of {count:,} of its {len(self.digests):,} tensors, so that they were not compared with the old "
            "checkpoint; give that folder as the old one, or record digests (reshard fingerprint)",
        )


def full_before(beside: Location, old: CheckpointPath, max_memory: int) -> FullBefore | None:
    """The full version on which a delta will stand; None where none is at ``beside``, or where it is OLD itself.

    Raises the errors of ``open_reader`` for one that cannot be read.
    """
    if not beside.exists() or str(beside) == str(old.root) or holds_delta(beside.view()):
        return None
    chosen = CheckpointPath.at(str(beside))
    check_leaves_to_read(max_memory, chosen)
    tensors = open_reader(chosen).tensors
    return FullBefore(beside, {name: stored.digest for name, stored in tensors.items()})


def refuse_other_full(
    before: FullBefore | None, old: str, payloads: Sequence[TensorPayload]
) -> None:
    """Refuses an OLD whose tensors have other digests than the full version beside the target."""
    if before is None:
        return
    found = {payload.spec.name: payload.crcs[0] for payload in payloads}
    for name in [*found, *before.digests]:
        there = before.digests.get(name, "nothing")
        given = found.get(name, "nothing")
        if there not in (None, given):
            raise VerificationError(
                f"of {name[:200]!r} the old checkpoint {old!r} gives {given}, but {before.place}, on which the delta would stand, has {there} "
                f"(digests as reshard fingerprint records them): it is not that version; {_REMEDY}"
            )


def refuse_other_base(
    index: DeltaIndex, beside: Location, payloads: Sequence[TensorPayload]
) -> None:
    """Refuses an OLD that is not the base version beside the target, where that is a delta that records its result."""
    if not holds_delta(beside.view()):
        return
    base = open_delta(beside)
    if base.index.checksum != index.checksum:
        return
    pairs = [("", index.base_digest, base.index.target_digest)]
    if base.index.target_digest is None:  # of another program, or for one: of what it changed
        given = {payload.spec.name: payload.digests[0] for payload in payloads}
        pairs = [(f" of {n[:200]!r}", given.get(n), p.digest) for n, p in base.payloads.items()]
    for of, found, recorded in pairs:
        if found != recorded:
            raise VerificationError(
                f"the old checkpoint gives the digest {found}{of}, but {beside} records {recorded} for the version {base.version}: it is not what "
                f"that version was made of, or other rules were applied; {_REMEDY}"
            )
