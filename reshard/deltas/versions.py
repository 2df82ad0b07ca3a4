"""Versions of weights in a folder: full ones and deltas, those that lead to the newest, and those that nothing needs, which can be removed.

The newest are removed first, so that the rest is a chain at every moment. Each is withdrawn under the lock of its writers: on a disk by one
rename, in a bucket by its mark and its index.

In a bucket, receivers take the index for the commit, this program the marker that is put after it. Between the two requests a version is
whole, and receivers may have read it. So it is finished, never removed or made anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import ClassVar, Literal

from msgspec.structs import replace

from reshard.answers.record import Json, Record
from reshard.deltas.report import DeltaTensor
from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    MissingError,
    NotACheckpointError,
    PlanError,
    ReshardError,
    TargetBusyError,
)
from reshard.formats.delta.chain import unlike_base
from reshard.formats.delta.index import DeltaIndex, ListedTensor, is_delta
from reshard.formats.delta.index_values import version_id, version_order
from reshard.formats.delta.read_delta import (
    Delta,
    Payload,
    holds_delta,
    is_skyrl_name,
    open_delta,
    version_of_delta,
)
from reshard.formats.names import version_of_name
from reshard.formats.safe_json import json_value, read_bytes
from reshard.formats.safetensors.files import INDEX_NAME, is_shard
from reshard.geometry.dtypes import storage_bytes
from reshard.geometry.sizes import format_bytes
from reshard.storage.commit_markers import is_left_unfinished
from reshard.storage.leftovers import Leftovers, remove_leftovers
from reshard.storage.local.staging import PARTIAL
from reshard.storage.location import Location, locate
from reshard.storage.targets import lock_target
from reshard.storage.transaction import Transaction

VersionKind = Literal["full", "delta", "unfinished", "unusable", "damaged"]


class VersionInfo(Record, frozen=True):
    """One version of weights.

    Attributes:
        name: of its folder.
        version, base_version: such as ``"000007"`` or ``"v7"``; the second is "" for a full version.
        kind: ``"full"`` or ``"delta"``; ``"unfinished"`` without the file that is written last, ``"damaged"`` where its files contradict each other,
            ``"unusable"`` for others that cannot be applied.
        nbytes: of its files.
        changed: number of tensors that a delta changes.
        encoding, checksum: of a delta's payloads.
        changed_elements: of all its tensors; None where the writer of a delta does not count them.
        identity: the root that a delta records of its result; "" for none.
        is_needed: true if the newest version that can be made needs it.
        problem: the reason why it leads nowhere; "" for none.
        tensors: the changes of a delta that was asked for by itself and whose writer counts them; else empty.
    """

    JSON: ClassVar[Json] = Json(
        later=(
            "changed", "encoding", "checksum", "changed_elements", "is_needed", "problem", "tensors", "identity",
        )
    )  # fmt: skip

    name: str
    version: str
    base_version: str
    kind: VersionKind
    nbytes: int
    changed: int = 0
    encoding: str = ""
    checksum: str = ""
    changed_elements: int | None = None
    is_needed: bool = False
    problem: str = ""
    tensors: tuple[DeltaTensor, ...] = ()
    identity: str = ""

    def __str__(self) -> str:
        on = f" on {self.base_version}" if self.base_version else ""
        return f"{self.name}: {self.kind}{on}, {format_bytes(self.nbytes)}{', ' + self.problem if self.problem else ''}"


def versions_of(uri: str, root: Location) -> tuple[VersionInfo, ...]:
    """The versions in a folder, each after the one on which it stands, else by their numbers; for the folder of a delta that one. Metadata only.

    A delta whose base is not in the folder stands on a version elsewhere, such as the model with which serving began.

    Raises NotACheckpointError where there are none.
    """
    if holds_delta(root.view()):
        (found,) = _needed([_version(root, root.name, {})], {})
        return (
            found if found.kind != "delta" else replace(found, tensors=_changes(open_delta(root))),
        )
    names = version_folders(root)
    if not names:
        raise NotACheckpointError(
            f"{uri} holds no versions of weights: expected folders such as weight_v000007, or the folder of a delta"
        )
    indexes: dict[str, DeltaIndex] = {}
    listed = [_version(root / name, name, indexes) for name in names]
    return _needed(_in_order(_once(listed)), indexes)


def version_folders(root: Location) -> list[str]:
    """The folders of versions: those with the name of one, else those with the index of a delta, and those on which these stand."""
    names = root.folders() if root.is_folder() else []
    numbered = [name for name in names if version_of_delta(name) is not None]
    if numbered:
        return numbered
    bases = {name: base for name in names if (base := _base_in(root / name))}
    return [name for name in names if name in bases or version_id(name) in bases.values()]


def _base_in(place: Location) -> str:
    """The base in the index of a delta; "" for any other folder."""
    try:
        file = place.view() / INDEX_NAME
        found = json_value(read_bytes(file, what="the index"), str(file)) if file.is_file() else {}
    except ReshardError:  # not known to be a version
        return ""
    return version_id(str(found["metadata"].get("base_version"))) if is_delta(found) else ""


def _order(one: VersionInfo) -> tuple[str, int, str]:
    return (*version_order(one.version), one.name)


def _in_order(found: Sequence[VersionInfo]) -> list[VersionInfo]:
    """Each version after the one on which it stands; those of a circle, and those that stand on one, cannot be made."""
    by_version = {one.version: one for one in found}
    ordered: dict[str, VersionInfo] = {}
    for one in sorted(found, key=_order):
        road: dict[str, VersionInfo] = {}
        at: VersionInfo | None = one
        while at is not None and at.name not in ordered and at.name not in road:
            road[at.name] = at
            at = by_version.get(at.base_version)
        if at is not None and at.name in road:
            problem = f"the versions {' and '.join(sorted(road))} stand on one another"
            road = {n: replace(v, kind="unusable", problem=problem) for n, v in road.items()}
        ordered |= dict(reversed(road.items()))
    return list(ordered.values())


def _once(found: Sequence[VersionInfo]) -> list[VersionInfo]:
    """The versions; two folders of one version, in both layouts, are unusable: a later delta may stand on either."""
    folders: dict[str, list[str]] = {}
    for one in found:
        folders.setdefault(one.version, []).append(one.name)
    return [
        replace(
            one, kind="unusable", problem=f"{' and '.join(folders[one.version])} are of one version"
        )
        if len(folders[one.version]) > 1
        else one
        for one in found
    ]


def _version(place: Location, name: str, indexes: dict[str, DeltaIndex]) -> VersionInfo:
    """The version in a folder; notes the index of a delta by its version, without its tensors."""
    version = version_of_delta(name) or version_id(name)
    place, nbytes = place.view(), 0
    try:
        nbytes = sum(_sizes(place))
        if not holds_delta(place):
            return _full(place, name, version, nbytes)
        delta = open_delta(place)
    except ReshardError as error:
        is_damage = isinstance(error, CorruptError | MissingError | IncompleteCheckpointError)
        kind: VersionKind = "damaged" if is_damage else "unusable"
        return VersionInfo(name, version, "", kind, nbytes, problem=str(error))
    index = delta.index
    indexes[delta.version] = replace(index, weight_map={}, tensors=None, changed=None)
    return VersionInfo(
        name,
        delta.version,
        delta.base_version,
        "delta",
        nbytes,
        len(delta.payloads),
        index.encoding,
        index.checksum,
        None if index.changed is None else sum(index.changed.values()),
        identity=index.target_identity or "",
    )


def _changes(delta: Delta) -> tuple[DeltaTensor, ...]:
    """The changes of each tensor; empty where they are not recorded."""
    index = delta.index
    if index.tensors is None or index.changed is None:
        return ()
    changed, listed = index.changed, index.tensors
    return tuple(
        _change(n, listed[n], changed[n], one, index.weight_map[n])
        for n, one in delta.payloads.items()
    )


def _change(
    name: str, listed: ListedTensor, changed: int, payload: Payload, file: str
) -> DeltaTensor:
    dtype, shape = listed.elements(f"the delta's tensor {name[:200]!r}")
    elements = prod(shape)
    nbytes = elements * storage_bytes(dtype)
    return DeltaTensor(name, dtype, shape, nbytes, elements, changed, payload.piece.nbytes, file)


def _full(place: Location, name: str, version: str, nbytes: int) -> VersionInfo:
    from reshard.formats.registry import committed_format
    from reshard.formats.safetensors.format import SafetensorsForm

    may_be_full = not is_skyrl_name(name) and not (
        any(is_shard(file) for file in place.files()) and (not (place / INDEX_NAME).is_file())
    )
    if may_be_full and (found := committed_format(place)) is not None:
        said = "" if found == SafetensorsForm.format else f"no delta stands on the format {found}"
        return VersionInfo(name, version, "", "full", nbytes, problem=said)
    return VersionInfo(name, version, "", "unfinished", nbytes, problem="it is not finished")


def _sizes(place: Location) -> Iterator[int]:
    for file in place.files():
        status = (place / file).status()
        yield 0 if status is None else status.nbytes


def _needed(
    found: Sequence[VersionInfo], indexes: Mapping[str, DeltaIndex]
) -> tuple[VersionInfo, ...]:
    """The versions, those marked that the newest sound one needs: itself, and back to the first that stands on nothing here."""
    by_version = {one.version: one for one in found if not one.problem}
    lowest = next(iter(by_version), "")
    unsound = {one.version for one in found} - by_version.keys()
    told = [_with_problem(one, by_version, unsound, lowest, indexes) for one in found]
    needed = needed_by(told, 1)
    return tuple(replace(one, is_needed=not one.problem and one.version in needed) for one in told)


def needed_by(found: Sequence[VersionInfo], newest: int) -> set[str]:
    """The newest versions that can be made, and all on which they stand, also where that is not in the folder.

    If several chains end and none is known to be the newest, all are needed.
    """
    sound = {one.version: one for one in found if not one.problem}
    needed: set[str] = set()
    for at in [*list(sound)[-newest:], *unordered_ends(found)]:
        while at and at not in needed:
            needed.add(at)
            at = sound[at].base_version if at in sound else ""
    return needed


def unordered_ends(found: Sequence[VersionInfo]) -> list[str]:
    """The ends of several chains whose ids no number orders; empty where the newest is known."""
    sound = [one for one in found if not one.problem]
    bases = {one.base_version for one in sound}
    ends = [one.version for one in sound if one.version not in bases]
    keys = [version_order(version) for version in ends]
    is_ordered = len({prefix for prefix, _ in keys}) <= 1 and all(n >= 0 for _, n in keys)
    return [] if is_ordered or len(ends) <= 1 else ends


def _with_problem(
    one: VersionInfo,
    known: Mapping[str, VersionInfo],
    unsound: Collection[str],
    lowest: str,
    indexes: Mapping[str, DeltaIndex],
) -> VersionInfo:
    """The version, with a problem for a delta if a version below it is missing, cannot be used, or is another than its base."""
    at = one
    while not one.problem and at.kind == "delta":
        if at.base_version in known:
            base = indexes.get(at.base_version)
            if base is not None and unlike_base(base, indexes[at.version]):
                said = f"the version {at.version} was made of other weights than {at.base_version} makes"
                return replace(one, problem=said)
            at = known[at.base_version]
            continue
        if at.version == lowest:
            break  # it stands on a version elsewhere
        there = at.base_version in unsound
        what = "cannot be used" if there else "is missing"
        return replace(one, problem=f"the version {at.base_version} {what}")
    return one


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
