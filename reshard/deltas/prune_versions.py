"""Removes the versions in a folder that no kept version needs.

The newest go first, so that the rest is a chain at every moment. Each is withdrawn under the lock of its writers: on a disk by one rename, in a
bucket by its mark and its index.

In a bucket, receivers take the index for the commit, this program the marker that is put after it. Between the two requests a version is
whole, and receivers may have read it. So it is finished, never removed or made anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.answers.record import Record
from reshard.deltas.versions import VersionInfo, needed_by, unordered_ends, versions_of
from reshard.errors import (
    CorruptError,
    FormatError,
    MissingError,
    PlanError,
    ReshardError,
    TargetBusyError,
)
from reshard.formats.delta.index_values import version_order
from reshard.formats.delta.read_delta import is_skyrl_name, open_delta, version_of_name
from reshard.formats.safetensors.files import INDEX_NAME
from reshard.geometry.sizes import format_bytes
from reshard.storage.commit_markers import is_left_unfinished
from reshard.storage.leftovers import Leftovers, remove_leftovers
from reshard.storage.local.staging import PARTIAL
from reshard.storage.location import Location, locate
from reshard.storage.targets import lock_target
from reshard.storage.transaction import Transaction


class CleanedVersions(Record, frozen=True):
    """The versions that were removed from a folder.

    Attributes:
        kept, removed: versions, by their numbers.
        leftovers: files that interrupted runs left, of versions up to the newest.
        is_removed: true if they are gone now; false after a dry run.
    """

    uri: str
    kept: tuple[VersionInfo, ...]
    removed: tuple[VersionInfo, ...]
    leftovers: tuple[Leftovers, ...]
    is_removed: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all that is removed; leftovers of a version in a bucket lie in its folder, and count once."""
        unfinished = {one.name for one in self.removed if one.kind == "unfinished"}
        others = (one for one in self.leftovers if one.target.rpartition("/")[2] not in unfinished)
        return sum(one.nbytes for one in self.removed) + sum(one.nbytes for one in others)

    def __str__(self) -> str:
        done = "removed" if self.is_removed else "would remove"
        return f"CleanedVersions({self.uri!r}: {done} {len(self.removed)} of {len(self.removed) + len(self.kept)}, {format_bytes(self.nbytes)})"


def prune_versions(uri: str, root: Location, keep: int, *, dry_run: bool) -> CleanedVersions:
    """Removes the versions that the newest ``keep`` do not need; see ``reshard.clean_versions``."""
    found = versions_of(uri, root)
    for one in found:
        _refuse_unread(one)
    if ends := unordered_ends(found):
        raise PlanError(
            f"which version in {uri} is the newest is not known: {' and '.join(ends)} end different chains, and no numbers in their ids order them; "
            "nothing was removed; move the chains that are not wanted to other folders, and run again"
        )
    removed = _unneeded(found, keep)
    kept = tuple(one for one in found if one not in removed)
    left = _leftovers(root, _until_newest(found), dry_run=dry_run)
    if not dry_run:
        for one in reversed(removed):
            if (root / one.name).exists():  # in a bucket it may have been a leftover
                _remove(root / one.name)
    return CleanedVersions(uri, kept, removed, left, not dry_run)


def _refuse_unread(one: VersionInfo) -> None:
    """Raises an error for a version that cannot be used: its base is not known, and could be removed."""
    if one.kind in ("damaged", "unusable"):
        raise (CorruptError if one.kind == "damaged" else FormatError)(
            f"the version {one.name} cannot be read, so that what it needs is not known, and nothing was removed: {one.problem}; restore that "
            "version or remove its folder, and run again"
        )


def _unneeded(found: Sequence[VersionInfo], keep: int) -> tuple[VersionInfo, ...]:
    """The versions to remove, all before the newest sound one: a later one may be unfinished. Deltas of SkyRL are only read."""
    until = _until_newest(found)
    needed = needed_by(found, keep) | {one.base_version for one in found[len(until) :]}
    return tuple(one for one in until if not is_skyrl_name(one.name) and one.version not in needed)


def _until_newest(found: Sequence[VersionInfo]) -> Sequence[VersionInfo]:
    """The versions up to the newest that can be made."""
    return found[: max((n for n, one in enumerate(found, 1) if not one.problem), default=0)]


def _leftovers(
    root: Location, until: Sequence[VersionInfo], *, dry_run: bool
) -> tuple[Leftovers, ...]:
    """Removes leftovers of interrupted runs, of versions that are published or late; leaves a run at work alone."""
    found: list[Leftovers] = []
    names = {one.name for one in until}
    newest = max((version_order(one.version) for one in until), default=("", -1))
    for folder in root.folders():
        name = folder.removeprefix(".").removesuffix(PARTIAL)
        version = version_of_name(name)
        is_late = name in names or (version is not None and version_order(version) <= newest)
        if folder != f".{name}{PARTIAL}" or not is_late:
            continue
        try:
            if is_half_published(root / name):
                _finish(root / name, dry_run=dry_run)
            else:
                found.append(remove_leftovers(str(root / name), dry_run=dry_run))
        except (MissingError, TargetBusyError):  # gone, or at work
            continue
    return tuple(found)


def _finish(place: Location, *, dry_run: bool) -> None:
    if dry_run:
        return
    with lock_target(place, unsafe=True) as transaction:
        finish_version(place, transaction)
        transaction.abort()


def _remove(place: Location) -> None:
    with lock_target(place, unsafe=True) as transaction:
        transaction.unpublish(INDEX_NAME)
        transaction.abort()


def is_half_published(place: Location) -> bool:
    """True if a delta is whole but for the marker; never where a folder appears by a rename."""
    now = locate(str(place))  # anew: a location of a bucket keeps its first listing
    if not is_left_unfinished(now):
        return False
    try:
        open_delta(now)
    except ReshardError:
        return False
    return True


def finish_version(place: Location, transaction: Transaction) -> None:
    """Puts the marker of a version that lacks nothing else; ``transaction`` holds it."""
    if is_half_published(place):
        transaction.keep_files()
        transaction.mark({})
        transaction.commit(overwrite=False)
