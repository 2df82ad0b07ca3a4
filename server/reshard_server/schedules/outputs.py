"""Outputs of schedules: the version that a step becomes, and the removal of the oldest.

The versions of a schedule are consecutive, one at a time: a step waits until the version before it is published or has failed, so that a
failure leaves no hole. The folder counts, not the plan::

    weight_v000001   full     the first one
    weight_v000002   delta    on weight_v000001: the two are compared
    weight_v000003   delta    on weight_v000002: the step of that version is compared, by the same map
    weight_v000004   full     the training run had deleted that step, or ``anchor_every`` was reached

If a delta cannot be made after all, its conversion makes a full version (``worker.convert``).

Only outputs that this schedule made in a successful conversion are removed, and only if they are still the same, by the record
that the conversion wrote into them. The oldest goes first, the newest stays. If the server dies in between, the next one
finishes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from reshard.errors import StorageError
from reshard.formats.delta.index_values import version_text
from reshard.formats.names import version_of_name
from reshard.storage.location import Location
from reshard.storage.targets import remove_finished, stamp_of_finished
from reshard_server.auth.local_root import REMOVED_PREFIX
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules.outputs import Output
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import OF_A_BUCKET, ProblemError, words_of
from reshard_server.observability.logs import audit
from reshard_server.schedules.scheduling import Occasion, Scheduling, UnfitError
from reshard_server.schemas.schedule import NewSteps, PublishedVersions


def folder_of(stored: StoredSchedule) -> str:
    """The client's path of the folder of the versions."""
    return stored.body.targets[0].target.rpartition("/")[0].replace("{name}", stored.name)


def newest_step(scheduling: Scheduling, stored: StoredSchedule) -> int:
    """The latest step that was published; -1 for none."""
    made = _made(scheduling, stored)
    return max((output.step for output in made if output.step is not None), default=-1)


def next_publication(
    scheduling: Scheduling,
    stored: StoredSchedule,
    section: PublishedVersions,
    steps: Mapping[int, str],
    occasion: Occasion,
) -> Occasion:
    """The occasion of a step with the version that it becomes: a delta on the one before, if that and its source are there.

    Args:
        steps: the folder of each step that is there, beside the occasion's source.

    Raises ProblemError and StorageError if the folder of the versions cannot be read.
    """
    folder = folder_of(stored)
    place = scheduling.roots.writable(scheduling.caller(stored), folder)
    highest = scheduling.roots.ask(folder, lambda: _highest(place))
    made = _made(scheduling, stored)
    version = max(highest, *(_version(output) for output in made), 0) + 1

    def published(why: str, old: str | None = None) -> Occasion:
        detail = f"version {version_text(version)}: {why}"
        return replace(occasion, version=version, old=old, detail=detail)

    if not made:
        return published("the first of this schedule")
    last, before = made[-1], version_text(version - 1)
    if (
        _version(last) != version - 1
        or highest != version - 1
        or _stamp(scheduling, last) != last.stamp
    ):
        return published(
            f"a full one, since the version {before} is not this schedule's, or is gone"
        )
    since = _deltas_since_full(scheduling, made, section.anchor_every)
    if since >= section.anchor_every - 1:
        return published(f"a full one, as every {section.anchor_every} versions")
    if since == 0:
        return published(f"a delta on the version {before}", last.target)
    name = None if last.step is None else steps.get(last.step)
    if name is None:
        return published(
            f"a full one, since the step {last.step}, of which the version {before} was made, is gone"
        )
    directory = occasion.source.rpartition("/")[0]
    return published(f"a delta on the version {before}", f"{directory}/{name}")


def _made(scheduling: Scheduling, stored: StoredSchedule) -> list[Output]:
    """The versions that the schedule made, by their numbers."""
    template = stored.body.targets[0].target
    found = schedule_outputs.made(scheduling.database, stored.name, template)
    return sorted(found, key=_version)


def _version(output: Output) -> int:
    return int(version_of_name(output.target.rpartition("/")[2]) or 0)


def _highest(folder: Location) -> int:
    """The highest version in a folder, finished or not; 0 for none."""
    names = folder.folders() if folder.is_folder() else []
    return max((int(version_of_name(name) or 0) for name in names), default=0)


def _deltas_since_full(scheduling: Scheduling, made: list[Output], most: int) -> int:
    """The number of newest versions in a row that are deltas, counted up to ``most``."""
    for count, output in enumerate(reversed(made[-most:])):
        if _is_full(scheduling, output):
            return count
    return most


def _is_full(scheduling: Scheduling, output: Output) -> bool:
    """True if a version of the weights needs no other: a conversion leaves its record there, a delta does not."""
    place = scheduling.roots.recheck(output.target)
    return scheduling.roots.ask(output.target, (place / RECORD).is_file)


def kept_versions(scheduling: Scheduling, existing: list[Output], keep: int) -> set[str]:
    """Ids of the newest versions and of all their bases."""
    ordered = sorted(existing, key=_version)
    kept = ordered[-keep:]
    for output in reversed(ordered[:-keep]):
        if _is_full(scheduling, kept[0]):
            break
        kept.insert(0, output)
    return {output.id for output in kept}


LOG = logging.getLogger(__name__)

REMOVE_SECONDS = 120.0
"""Seconds that the schedules wait while objects are deleted; the rest is deleted later."""


def record_made(scheduling: Scheduling, conversion: str) -> None:
    """Records the stamp of each output after the conversion succeeded."""
    db = scheduling.database
    for output in schedule_outputs.of_conversion(db, conversion):
        made = _stamp(scheduling, output)
        if made is None:
            schedule_outputs.forget(db, output)
        else:
            schedule_outputs.set_made(db, output, made)


def remove_old(scheduling: Scheduling, stored: StoredSchedule) -> None:
    """Removes the outputs beyond those that the schedule keeps now."""
    if stored.body.keep is None:
        return
    for template in sorted({requested.target for requested in stored.body.targets}):
        try:
            old = _too_old(scheduling, stored, template, stored.body.keep)
        except (ProblemError, StorageError) as error:  # looked at again after the next conversion
            LOG.warning("old outputs of %s are not removed now: %s", stored.name, words_of(error))
            continue
        for output in old:
            if schedule_outputs.begin_removing(scheduling.database, output):
                finish_removing(scheduling, stored, output)


def finish_removing(scheduling: Scheduling, stored: StoredSchedule, output: Output) -> None:
    """Removes an output whose removal has begun, with the rights of the schedule."""
    try:
        target = scheduling.roots.writable(scheduling.caller(stored), output.target)
        aside = f"{REMOVED_PREFIX}{output.id[:32]}"
        is_removed = scheduling.roots.ask(
            output.target,
            lambda: remove_finished(target, output.stamp or "", RECORDS, aside),
            REMOVE_SECONDS,
        )
        if is_removed:  # and not gone already, or replaced by something else
            LOG.info("removed %s, an old output of a schedule", target)
            where = f"/v1/schedules/{stored.name}"
            audit("removed", caller=stored.token, resource=where, targets=[output.target])
    except (UnfitError, ProblemError) as refused:
        LOG.warning("%s is not removed: %s", output.target, words_of(refused))
        if isinstance(refused, ProblemError) and refused.kind in OF_A_BUCKET:
            return  # tried again later
    except (OSError, StorageError) as error:
        LOG.warning("%s cannot be removed: %s", output.target, error)
        return  # tried again later
    schedule_outputs.forget(scheduling.database, output)


def _too_old(
    scheduling: Scheduling, stored: StoredSchedule, template: str, keep: int
) -> list[Output]:
    """Existing outputs beyond those to keep, oldest first; only those that this kind of schedule made."""
    by_steps = isinstance(stored.body.when, NewSteps)
    existing = []
    for output in schedule_outputs.made(scheduling.database, stored.name, template):
        if _is_there(scheduling, output):
            existing.append(output)
        else:
            schedule_outputs.forget(scheduling.database, output)
    counted = [o for o in existing if (o.step is not None) == by_steps]
    counted.sort(key=lambda o: (o.step or 0, o.at))
    if stored.body.delta is not None:
        kept = kept_versions(scheduling, counted, keep)
        # The latest first, so that a delta goes before the version on which it stands.
        return [output for output in reversed(counted) if output.id not in kept]
    return counted[:-keep]


def _is_there(scheduling: Scheduling, output: Output) -> bool:
    """True if the output exists. Raises ProblemError if a bucket does not answer."""
    try:
        return _stamp(scheduling, output) == output.stamp
    except ProblemError as problem:
        if problem.kind in OF_A_BUCKET:
            raise
        return False


def _stamp(scheduling: Scheduling, output: Output) -> str | None:
    place = scheduling.roots.recheck(output.target)
    return scheduling.roots.ask(output.target, lambda: output_stamp(place))


RECORD = "slices.json"
INDEX = "model.safetensors.index.json"
"""The record of a delta, which has no other and writes it last."""

RECORDS = (RECORD, INDEX)


def output_stamp(output: Location) -> str | None:
    """A stamp that changes when something else replaces a converted checkpoint; None without a checkpoint."""
    return stamp_of_finished(output, RECORDS)
