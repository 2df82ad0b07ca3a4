"""Keeps only the newest outputs of each target of a schedule, and removes the older ones.

Only outputs that this schedule made in a successful conversion are removed, and only if they are still the same folder:
same inode, and same digest of the record that the conversion wrote into it. The oldest goes first, the newest stays. An
output is renamed to a hidden name beside it and then removed. If the server dies in between, the next one finishes.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from reshard_server.auth.reserved_names import REMOVED_PREFIX
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules.outputs import Output
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import ProblemError
from reshard_server.observability.audit import audit
from reshard_server.schedules.hard_links import remove_tree
from reshard_server.schedules.scheduling import Scheduling, UnfitError
from reshard_server.schemas.schedule import NewSteps

LOG = logging.getLogger(__name__)

RECORD = "slices.json"


def identity(folder: Path) -> str | None:
    """Identifies a converted checkpoint: inode and digest of its record; None if there is none."""
    try:
        inode = folder.lstat().st_ino
        content = (folder / RECORD).read_bytes()
    except OSError:
        return None
    return f"{inode}-{hashlib.sha256(content).hexdigest()}"


def record_made(scheduling: Scheduling, conversion: str) -> None:
    """Records the identity of each output after the conversion succeeded."""
    db = scheduling.database
    for output in schedule_outputs.of_conversion(db, conversion):
        made = identity(scheduling.roots.recheck(output.target))
        if made is None:
            schedule_outputs.forget(db, output)
        else:
            schedule_outputs.set_made(db, output, made)


def remove_old(scheduling: Scheduling, stored: StoredSchedule) -> None:
    """Removes the outputs beyond those that the schedule keeps now."""
    if stored.body.keep is None:
        return
    for template in sorted({requested.target for requested in stored.body.targets}):
        for output in _too_old(scheduling, stored, template, stored.body.keep):
            if schedule_outputs.begin_removing(scheduling.database, output):
                finish_removing(scheduling, stored, output)


def finish_removing(scheduling: Scheduling, stored: StoredSchedule, output: Output) -> None:
    """Removes an output whose removal has begun, with the rights of the schedule."""
    try:
        target = scheduling.roots.writable(scheduling.caller(stored), output.target)
        if _remove(target, output):
            where = f"/v1/schedules/{stored.name}"
            audit("removed", caller=stored.token, resource=where, targets=[output.target])
    except (UnfitError, ProblemError) as refused:
        LOG.warning("%s is not removed: %s", output.target, refused)
    except OSError as error:
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
    return counted[:-keep]


def _is_there(scheduling: Scheduling, output: Output) -> bool:
    try:
        return identity(scheduling.roots.recheck(output.target)) == output.identity
    except ProblemError:
        return False


def _remove(target: Path, output: Output) -> bool:
    """Removes the output; False if it is gone or another folder has its name."""
    hidden = target.with_name(f"{REMOVED_PREFIX}{output.id[:32]}")
    remove_tree(hidden)
    if identity(target) != output.identity:
        return False
    target.rename(hidden)
    if identity(hidden) != output.identity:  # another folder took its name at this moment
        hidden.rename(target)
        return False
    LOG.info("removing %s, an old output of the schedule %s", output.target, output.schedule)
    remove_tree(hidden)
    return True
