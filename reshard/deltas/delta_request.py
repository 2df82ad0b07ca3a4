"""DeltaRequest: what was asked of a delta, and whether its version may be published where it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import PlanError, ResumeError, TargetExistsError, VerificationError
from reshard.formats.checkpoint_path import CheckpointPath
from reshard.formats.delta.checksums import Checksum
from reshard.formats.delta.index import DeltaIndex, Encoded, is_delta, parse_index, version_text
from reshard.formats.delta.read_delta import anchor_version, version_of_name
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.safetensors.model_name import INDEX_NAME
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
            f"the target {str(place)!r} should have the name of a version, weight_v and a number of six digits, or more where it needs them, by which receivers find it; name it "
            "such as weight_v000007"
        )
    base = request.base_version
    if base is None:
        base = anchor_version(request.old.root)
    if base is None:
        base = version - 1
    if not 0 <= base < version:
        raise PlanError(
            f"the base of the version {version_text(version)} should be an earlier one, from 0, but is {base}; give another base version, or name the "
            "target by a later version"
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


def refuse_other_base(index: DeltaIndex, place: Location) -> None:
    """Refuses an OLD that is not the base version beside the target, where that is a delta which says what it gives."""
    file = (place.parent / f"weight_v{version_text(index.base_version)}").view() / INDEX_NAME
    if not file.is_file():
        return
    data = read_bytes(file, what="the index of the base version")
    if not is_delta(json_value(data, str(file))):
        return
    base = parse_index(data, str(file))
    if base.checksum == index.checksum and base.target_digest not in (None, index.base_digest):
        raise VerificationError(
            f"the old checkpoint gives the digest {index.base_digest}, but {file} records {base.target_digest} for the version "
            f"{version_text(index.base_version)}: it is not what that version was made of, or other rules were applied; give the step of that "
            "version with the same rules, or publish a full version"
        )


def refuse_other_deltas(place: Location, left: Mapping[str, Any] | None) -> None:
    """Keeps what a conversion left that can be resumed; an earlier delta begins anew."""
    if left is not None and left != MADE_BY:
        raise ResumeError(
            f"another run to {str(place)!r} was interrupted, and what it did was kept; run it again to resume it, or remove what it left "
            f"(reshard clean {place})"
        )
