"""The leftovers of an interrupted run to a target, and their removal."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from reshard.answers.record import Record
from reshard.errors import MissingError, StorageError
from reshard.storage.commit_markers import is_left_unfinished
from reshard.storage.local.staging import staging_for
from reshard.storage.location import Location, locate
from reshard.storage.parts import remove_parts
from reshard.storage.targets import (
    count_uploads,
    has_leftovers,
    held_target,
    is_local,
    remove_uploads,
    state_of,
)


class Leftovers(Record, frozen=True):
    """The leftovers of an interrupted run.

    Attributes:
        place: the folder that records unfinished work, beside the target or as configured.
        files: number of written files of the target; in a bucket they lie under the target's own name.
        nbytes: of these files.
        uploads: number of unfinished uploads in parts that a killed process left; they are paid for. None if the store does not
            list them (only S3 does), so that a lifecycle rule of the bucket must remove them.
        is_removed: true if all of it is gone now.
    """

    target: str
    place: str
    files: int
    nbytes: int
    uploads: int | None = 0
    is_removed: bool = False


def remove_leftovers(target: str, *, dry_run: bool = False, state: str | None = None) -> Leftovers:
    """Removes the leftovers of an interrupted run to a target; with ``dry_run`` only counts them.

    Raises MissingError if nothing is left, TargetBusyError if a run is writing the target now, and StorageError if
    something cannot be removed. A finished target is not touched.
    """
    place = locate(target)
    if not _is_left(place, state):
        raise MissingError(
            f"nothing is left of an interrupted run to {target}; check the path: it is that of the target, not of the folder beside it"
        )
    sizes = _sizes(place)
    found = Leftovers(str(place), str(state_of(place, state)), len(sizes), sum(sizes), 0)
    if dry_run:
        return replace(found, uploads=count_uploads(place))
    with held_target(place, unsafe=True, state=state) as transaction:
        remove_parts(place, state)
        uploads = remove_uploads(place)
        transaction.abort()
    if _is_left(place, state):
        raise StorageError(
            f"not all that an interrupted run left of {target} could be removed; see that this user may delete {found.place} and what is "
            "below it, and run again"
        )
    return replace(found, uploads=uploads, is_removed=True)


def _is_left(target: Location, state: str | None) -> bool:
    return has_leftovers(target, state=state) or is_left_unfinished(target)


def _sizes(target: Location) -> list[int]:
    """The size of each written file of an unfinished target."""
    if is_local(target):
        return _sizes_in_stages(locate(staging_for(Path(target.path)).folder))
    if is_left_unfinished(target):
        root = target.view()
    else:
        return []  # a finished target; its run was interrupted before it removed its records
    found = ((root / file).status() for file in root.files()) if root.is_folder() else ()
    return [status.nbytes for status in found if status is not None]


def _sizes_in_stages(folder: Location) -> list[int]:
    """The sizes of the files of an unfinished local target, of all parts, without journals and locks."""
    files = folder.files() if folder.is_folder() else ()
    found = ((folder / file).status() for file in files if "checkpoint/" in file)
    return [status.nbytes for status in found if status is not None]
