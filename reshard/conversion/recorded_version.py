"""The version of a target's weights: as its name says, or as the deltas over its source make it."""

from __future__ import annotations

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions
from reshard.errors import PlanError
from reshard.formats.base import Reader, TargetCheckpoint
from reshard.formats.delta.index_values import folder_of
from reshard.formats.delta.read_delta import version_of_name
from reshard.storage.location import Location


def with_version(
    target: TargetCheckpoint, place: Location, reader: Reader, options: CheckedOptions
) -> TargetCheckpoint:
    """The target with the version that its index records.

    Raises PlanError where the name says another version than the deltas make. A map or rules make another version, which only a name
    can number.
    """
    named = version_of_name(place.name)
    is_as_made = options.given_map is None and not options.changes
    made = reader.version.id if reader.version is not None and is_as_made else None
    if made is not None and named not in (None, made):
        raise PlanError(
            f"the target {str(place)!r} has the name of the version {named}, but the deltas make the version {made}, on "
            f"which receivers would put the wrong deltas; name it {folder_of(made)}, or by no version"
        )
    return replace(target, version=made if named is None else named)
