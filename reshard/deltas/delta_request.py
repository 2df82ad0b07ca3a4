"""DeltaRequest: the request of a delta, and the checks that its version may stand at its target, on the version before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.arguments import DeltaEncoding, DeltaReceiver
from reshard.deltas.payloads import TensorPayload
from reshard.engine.metadata_budget import check_leaves_to_read
from reshard.errors import PlanError, ResumeError, TargetExistsError, VerificationError
from reshard.formats.delta.index import DeltaIndex
from reshard.formats.delta.index_values import (
    MOST_ID_BYTES,
    Checksum,
    can_be_id,
    folder_of,
    version_id,
    version_text,
)
from reshard.formats.delta.read_delta import (
    anchor_version,
    holds_delta,
    open_delta,
    recorded_version,
    version_of_delta,
)
from reshard.formats.names import version_of_name
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.storage.local.target_checks import refuse_overlap
from reshard.storage.location import Location
from reshard.storage.targets import check_place

MADE_BY = {"made_by": "reshard.delta"}
"""The record of a run that makes a delta."""


class DeltaRequest(Struct, frozen=True):
    """The request of a delta.

    Attributes:
        old, new: the checkpoints.
        target: the folder of the version, such as ``published/weight_v000007``.
        given, changes: the map and the rules, as for a conversion of NEW.
        base_version: the version of OLD; None where OLD records it, or where it is the number before the target's.
        receiver: the program that reads it.
        file_bytes: most bytes of payloads in one file.
        again: true if an earlier run of the same request may have published the version.
    """

    old: CheckpointPath
    new: CheckpointPath
    target: str
    given: GivenMap | None
    changes: Changes
    encoding: DeltaEncoding
    checksum: Checksum
    base_version: str | None
    file_bytes: int
    again: bool = False
    receiver: DeltaReceiver = "pull_weights"

    def folder_of(self, version: str) -> str:
        """The name of the folder of a version beside the target."""
        return version if self.receiver == "modelexpress" else folder_of(version)


def delta_versions(request: DeltaRequest, place: Location) -> tuple[str, str]:
    """The version that the target's name gives, and that of OLD."""
    if request.receiver == "modelexpress":
        return _named_versions(request, place)
    version = version_of_name(place.name)
    if version is None:
        raise PlanError(
            f"the target {str(place)!r} should have the name of a version, weight_v and a number of six digits, or more where it needs "
            "them, by which receivers find it; name it such as weight_v000007"
        )
    own = anchor_version(request.old.root)
    base = _base_version(request, own)
    number = int(version) - 1 if base is None else int(base) if base.isdecimal() else -1
    if not 0 <= number < int(version):
        raise PlanError(
            f"the base of the version {version} should be an earlier one, from 0, but is {number if base is None else base}; give another base "
            "version, or name the target by a later version"
        )
    return version, version_text(number)


def _named_versions(request: DeltaRequest, place: Location) -> tuple[str, str]:
    """Both versions where the ids are the names of folders: OLD records its own, or lies beside the target."""
    old, version = request.old.root, place.name
    if version_of_delta(version) is not None:
        raise PlanError(
            f"{str(place)!r} has the name of a numbered version, and readers take the number for its id, but ModelExpress the name; give another "
            "name, such as v7"
        )
    is_beside = old.name and str(place.parent / old.name) == str(old)
    base = _base_version(request, recorded_version(old)) or (old.name if is_beside else None)
    if base is None:
        raise PlanError(
            f"the old checkpoint {request.old.path!r} does not say which version it is: expected the id in its index, or a folder beside the target; "
            "give its id (base_version)"
        )
    for one in (version, base):
        if not can_be_id(one):
            raise PlanError(
                f"{one[:MOST_ID_BYTES]!r} cannot be the id of a version: expected the name of a folder, of {MOST_ID_BYTES} bytes at most, that does "
                "not begin with a dot; give another name, such as v7"
            )
    if version_id(version) == version_id(base):
        raise PlanError(
            f"the target {str(place)!r} and the version on which it stands would both be {version}; name the target by another version"
        )
    return version, base


def _base_version(request: DeltaRequest, own: str | None) -> str | None:
    """The version of OLD, as asked for or as ``own`` says; PlanError where they differ."""
    asked = request.base_version
    if None not in (own, asked) and version_id(own or "") != version_id(asked or ""):
        raise PlanError(
            f"the old checkpoint {request.old.path!r} is the version {own}, as its index or its folder's name says, "
            f"but base_version is {asked}; leave base_version out, or give the old checkpoint that is meant"
        )
    return own if asked is None else asked


def check_new_version(place: Location, request: DeltaRequest) -> None:
    """Refuses a version that exists, which receivers may have read, and a place within a source."""
    try:
        check_place(place, request.old.root, overwrite=False)
        refuse_overlap(place, request.new.root)
    except TargetExistsError:
        raise TargetExistsError(
            f"the version {str(place)!r} exists already and was left untouched, since receivers may have read it; publish the next version"
        ) from None


def refuse_other_deltas(place: Location, left: Mapping[str, Any] | None) -> None:
    """Raises ResumeError for an interrupted conversion that can be resumed; an earlier delta begins anew."""
    if left is not None and left != MADE_BY:
        raise ResumeError(
            f"another run to {str(place)!r} was interrupted, and what it did was kept; run it again to resume it, or remove what it left "
            f"(reshard clean {place})"
        )


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
