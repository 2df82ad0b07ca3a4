"""DeltaRequest: what was asked of a delta, and whether its version may be published where it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import PlanError, ResumeError, TargetExistsError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.delta.checksums import Checksum
from reshard.formats.delta.index import Encoded, version_text
from reshard.formats.delta.read_delta import anchor_version, version_of_name
from reshard.layout.changes import Changes
from reshard.maps.given_map import GivenMap
from reshard.storage.local.target_checks import refuse_overlap
from reshard.storage.location import Location
from reshard.storage.targets import check_place

MADE_BY = {"made_by": "reshard.delta"}
"""The record of a run that makes a delta."""


class DeltaRequest(Struct, frozen=True):
    """What was asked.

    Attributes:
        old, new: the checkpoints.
        target: the folder of the version, such as ``published/weight_v000007``.
        given, changes: the map and the rules, as for a conversion of NEW.
        base_version: of OLD; None where it or the number before the target's says it.
        file_bytes: most bytes of payloads in one file.
        again: an earlier run of the same request may have published the version.
    """

    old: CheckpointPath
    new: CheckpointPath
    target: str
    given: GivenMap | None
    changes: Changes
    encoding: Encoded
    checksum: Checksum
    base_version: int | None
    file_bytes: int
    again: bool = False


def delta_versions(request: DeltaRequest, place: Location) -> tuple[int, int]:
    """The version that the target's name gives, and that of OLD."""
    version = version_of_name(place.name)
    if version is None:
        raise PlanError(
            f"the target {str(place)!r} should have the name of a version, weight_v and a number of six digits, or more where it needs "
            "them, by which receivers find it; name it such as weight_v000007"
        )
    own, base = anchor_version(request.old.root), request.base_version
    if None not in (own, base) and own != base:
        raise PlanError(
            f"the old checkpoint {request.old.path!r} is the version {version_text(own or 0)}, as its index or its folder's name says, "
            f"but base_version is {base}; leave base_version out, or give the old checkpoint that is meant"
        )
    if base is None:
        base = version - 1 if own is None else own
    if not 0 <= base < version:
        raise PlanError(
            f"the base of the version {version_text(version)} should be an earlier one, from 0, but is {base}; give another base version, "
            "or name the target by a later version"
        )
    return version, base


def check_new_version(place: Location, request: DeltaRequest) -> None:
    """Refuses a version that exists, which receivers may have read, and a place within a source."""
    try:
        check_place(place, request.old.root, overwrite=False)
        refuse_overlap(place, request.new.root)
    except TargetExistsError:
        raise TargetExistsError(
            f"the version {str(place)!r} exists already and was left untouched, since receivers may have read it; publish the next number"
        ) from None


def refuse_other_deltas(place: Location, left: Mapping[str, Any] | None) -> None:
    """Keeps what a conversion left that can be resumed; an earlier delta begins anew."""
    if left is not None and left != MADE_BY:
        raise ResumeError(
            f"another run to {str(place)!r} was interrupted, and what it did was kept; run it again to resume it, or remove what it left "
            f"(reshard clean {place})"
        )
