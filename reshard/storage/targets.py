"""Targets in any store: their places, the checks before a run, the transaction that writes one, and the removal of a finished one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from reshard.errors import PlanError
from reshard.storage.local import target_checks
from reshard.storage.local.files import storage_errors
from reshard.storage.local.publishing import check_prefix, finish_published
from reshard.storage.local.staging import FILES_OF_PREFIX, staging_for
from reshard.storage.local.store import LocalStore
from reshard.storage.local.syncing import sync_files
from reshard.storage.local.target_checks import refuse_overlap
from reshard.storage.local.transaction import lock_folder as held_local
from reshard.storage.local.transaction import remove_from_disk, stamp_on_disk
from reshard.storage.location import Location, is_in_bucket, is_in_hub, local_path, locate
from reshard.storage.transaction import Transaction


def target_text(target: str) -> str:
    """The canonical text of a target: a local path, or a URL of a bucket.

    The last part of a path is a name, so that a folder can be made beside it. Raises StorageError as ``locate``.
    """
    if is_in_bucket(target):
        return str(locate(target))
    path = local_path(target, writing=True)
    # A path such as ``.`` or ``a/..`` has no name at its end; its real path has.
    return path if Path(path).name not in ("", "..") else os.path.realpath(path)


def absolute_text(target: str) -> str:
    """The ``target_text`` independent of the working directory; links are kept."""
    text = target_text(target)
    return text if is_in_bucket(text) else os.path.abspath(text)  # noqa: PTH100  keeps links


def check_place(target: Location, source: Location, *, overwrite: bool, file: str = "") -> None:
    """Refuses a target that exists (unless it may be overwritten) or that overlaps with the source.

    Only a folder can be overwritten by a folder, and a file by a file; a link is refused.
    """
    refuse_overlap(target, source)
    check_new(target, overwrite=overwrite, file=file)


def check_new(target: Location, *, overwrite: bool, file: str = "") -> None:
    """Refuses a target that exists, unless it may be overwritten, or is an empty folder in place of a future folder.

    ``file`` as for ``lock_target``.
    """
    if is_local(target) and file == FILES_OF_PREFIX:
        check_prefix(Path(target.path))
        return
    if is_local(target):
        target_checks.check_new_path(Path(target.path), overwrite=overwrite, is_file=bool(file))
        return
    from reshard.storage.buckets.targets import check_new_in_bucket

    check_new_in_bucket(target, overwrite=overwrite, file=file)


def lock_target(
    target: Location, file: str = "", *, unsafe: bool = False, state: str | None = None
) -> AbstractContextManager[Transaction]:
    """The transaction of a target, as the last run left it; no other run can have it in the block.

    ``file`` names the file below the root that becomes the target; "" if the root itself does, ``FILES_OF_PREFIX`` if
    several files whose names begin with the target's do. ``unsafe``: also takes a store that ignores conditions on writing.
    ``state``: the folder in a bucket for the records of a run to a bucket; None for one beside the target. Raises
    TargetBusyError, naming the holder, if another live process holds it.
    """
    if is_local(target):
        return held_local(Path(target.path), file)
    from reshard.storage.buckets.transaction import lock_in_bucket

    return lock_in_bucket(target, unsafe=unsafe, state=state)


def stamp_of_finished(output: Location, records: Sequence[str]) -> str | None:
    """A stamp that identifies a finished output, even if another one gets its name later; None if there is none.

    ``records``: names of files in it. The first that exists is looked at, since it differs between any two outputs. Files of
    a prefix have the first one beside them. On the hub the stamp is the commit.
    """
    if is_local(output):
        return stamp_on_disk(Path(output.path), records)
    if is_in_hub(str(output)):
        from reshard.storage.hub.store import commit_of

        return commit_of(output)
    from reshard.storage.buckets.targets import stamp_in_bucket

    return stamp_in_bucket(output, records)


def remove_finished(output: Location, stamp: str, records: Sequence[str], aside: str) -> bool:
    """Removes a finished output, so that no reader sees half of it; False if it is gone or something else has its name.

    On the hub its branch is removed.

    Args:
        stamp, records: the result and the argument of ``stamp_of_finished``.
        aside: its temporary name on a disk, beside it. The leftover of an interrupted removal there is removed, too.

    Raises TargetBusyError if a run has the place of files of a prefix or of a bucket, StorageError if something stays.
    """
    if is_local(output):
        return remove_from_disk(Path(output.path), stamp, records, aside)
    if is_in_hub(str(output)):
        from reshard.storage.hub.store import remove_branch

        return remove_branch(output, stamp)
    from reshard.storage.buckets.targets import remove_from_bucket

    return remove_from_bucket(output, stamp, records)


def root_text(target: Location, file: str = "") -> str:
    """The text of the folder below which a transaction of the target writes."""
    return str(staging_for(Path(target.path), file).root) if is_local(target) else str(target)


def state_of(target: Location, state: str | None = None) -> Location:
    """The folder of a run to a target, with its records, and its lock or lease."""
    if is_local(target):
        return locate(staging_for(Path(target.path)).folder)
    from reshard.storage.buckets.transaction import state_folder

    return state_folder(target, state)


def refuse_state(target: str) -> None:
    """Raises PlanError for a folder of records if the target is in no bucket: on a disk its records are beside it, and a commit needs none."""
    if not is_in_bucket(target):
        raise PlanError(
            f"state is where runs to buckets are recorded, but the target {target!r} is in none; leave it out (state)"
        )


def has_leftovers(target: Location, file: str = "", state: str | None = None) -> bool:
    """True if an unfinished or active run has left or uses a folder beside the target."""
    if is_local(target):
        return os.path.lexists(staging_for(Path(target.path), file).folder)
    from reshard.storage.buckets.targets import has_state

    return has_state(target, state)


def count_uploads(target: Location) -> int | None:
    """The number of uploads in parts that were left below a target; None if it is not known."""
    if is_local(target):
        return 0
    from reshard.storage.buckets.aws import uploads_below

    found = uploads_below(target)
    return None if found is None else len(found)


def remove_uploads(target: Location) -> int | None:
    """Removes uploads in parts left below a target that the caller holds; returns their number, None if it is not known."""
    if is_local(target):
        return 0
    from reshard.storage.buckets.aws import abort_uploads

    return abort_uploads(target)


def make_durable(target: Location, files: Sequence[str]) -> None:
    """Makes files durable that another process wrote below the root of a transaction; in a bucket they already are."""
    if is_local(target):
        sync_files(staging_for(Path(target.path)).root, files)


def make_name_durable(target: Location) -> None:
    """Makes the name of a target durable that another process published; in a bucket it already is.

    The caller holds the target.
    """
    if is_local(target):
        path = Path(target.path)
        is_prefix = not os.path.lexists(path)  # none of several files has that name
        finish_published(staging_for(path, FILES_OF_PREFIX if is_prefix else ""))


def device_of(target: Location) -> int | None:
    """The file system of a future local target; None in a bucket, which never fills up."""
    if not is_local(target):
        return None
    with storage_errors("look at", target.path):
        return next(p for p in Path(target.path).absolute().parents if p.exists()).stat().st_dev


def is_link(target: Location) -> bool:
    """True if a symbolic link is there."""
    return is_local(target) and Path(target.path).is_symlink()


def is_local(place: Location) -> bool:
    """True if a place is on the local file system."""
    return isinstance(place.store, LocalStore)
