"""Keeps only the newest outputs of each target of a schedule, and removes the older ones.

Only outputs that this schedule made in a successful conversion are removed, and only if they are still the same
(``schedules.made_outputs``). The oldest goes first, the newest stays. If the server dies in between, the next one
finishes.
"""

from __future__ import annotations

import logging

from reshard.errors import StorageError
from reshard.storage.location import Location
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules.outputs import Output
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import OF_A_BUCKET, ProblemError, words_of
from reshard_server.observability.audit import audit
from reshard_server.schedules.made_outputs import output_stamp, remove
from reshard_server.schedules.publish_versions import kept_versions
from reshard_server.schedules.scheduling import Scheduling, UnfitError
from reshard_server.schemas.schedule import NewSteps

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
        if _remove(scheduling, target, output):
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


def _remove(scheduling: Scheduling, target: Location, output: Output) -> bool:
    """Removes the output; False if it is gone or something else has its name."""
    return scheduling.roots.ask(
        output.target, lambda: remove(target, output.id, output.stamp or ""), REMOVE_SECONDS
    )
