"""Cleans up after conversions of schedules that have ended, and after processes that died."""

from __future__ import annotations

import logging

from reshard.errors import StorageError
from reshard.formats.steps import committed_among
from reshard.storage.location import Location
from reshard_server.db.conversions import conversions, hard_links
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.runs import EndedRun
from reshard_server.errors.problems import STORAGE_REFUSED, ProblemError
from reshard_server.schedules.hard_links import GoneError, listing, remove_links
from reshard_server.schedules.outputs import finish_removing, record_made, remove_old
from reshard_server.schedules.scheduling import Scheduling, is_one_by_one
from reshard_server.schemas.schedule import NewSteps

LOG = logging.getLogger(__name__)

_LOST = ("SourceChangedError", "MissingError", "IncompleteCheckpointError")
"""Errors of the library if objects vanish while a checkpoint is read."""


def settle(scheduling: Scheduling) -> None:
    """Cleans up after every conversion that has ended: hard links, outputs, history.

    Each part may be repeated, so a process may die in between, and two replicas may do it at once.
    """
    _remove_unused_links(scheduling)
    ended = schedule_runs.ended(scheduling.database)
    for run in ended:
        _settle(scheduling, run)
    # Last, since it may take minutes: a step that waits for one of these conversions is looked for meanwhile.
    for name in dict.fromkeys(run.schedule for run in ended if run.state == "succeeded"):
        if (stored := schedules.get(scheduling.database, name)) is not None:
            remove_old(scheduling, stored)


def recover(scheduling: Scheduling) -> None:
    """Takes over unfinished work of dead processes."""
    dropped = schedule_runs.release_of_dead(scheduling.database, scheduling.heard_after)
    if dropped:
        LOG.warning(
            "released %d steps whose server died before it started their conversions", dropped
        )
    schedule_runs.reopen_retried(scheduling.database)
    for output in schedule_outputs.being_removed(scheduling.database):
        stored = schedules.get(scheduling.database, output.schedule)
        if stored is not None:
            finish_removing(scheduling, stored, output)


def _remove_unused_links(scheduling: Scheduling) -> None:
    db = scheduling.database
    hard_links.release_ended(db)
    for links in hard_links.unused(db, scheduling.heard_after):
        try:
            remove_links(links.path)
        except OSError as error:
            LOG.warning("the hard links %s cannot be removed: %s", links.path, error)
        else:
            hard_links.forget(db, links.id)


def _settle(scheduling: Scheduling, run: EndedRun) -> None:
    gone = None
    if run.state == "succeeded":
        try:
            record_made(scheduling, run.conversion)
        except ProblemError as problem:
            LOG.warning(
                "an output of %s is not recorded, so it will not be removed: %s",
                run.schedule,
                problem.detail,
            )
    elif run.state == "failed":
        gone = _gone(scheduling, run)
    schedule_runs.settle(scheduling.database, run, gone=gone)
    stored = schedules.get(scheduling.database, run.schedule)
    when = None if stored is None else stored.body.when
    if stored is None or not isinstance(when, NewSteps):
        return
    if when.newest_only or is_one_by_one(stored.body):
        schedules.look_now(scheduling.database, stored.name)  # a step may have waited for this one


def _gone(scheduling: Scheduling, run: EndedRun) -> str | None:
    """The sign that the step is gone, if the conversion failed because it was deleted while it was read; else None."""
    if run.step is None or run.source is None:
        return None
    try:
        step = scheduling.roots.recheck(run.source)
        if step.local is None:
            return _gone_from_bucket(scheduling, run, step)
        lost = listing(step.local).lost_files
    except GoneError:
        lost = True
    except (ProblemError, StorageError, OSError):
        return None
    return "it was deleted while it was read, without hard links" if lost else None


def _gone_from_bucket(scheduling: Scheduling, run: EndedRun, step: Location) -> str | None:
    """``_gone`` for a bucket: a training run that deletes a step may delete its marker last."""
    ended = conversions.get(scheduling.database, run.conversion)
    error = (ended and ended.error) or {}
    was_lost = error.get("error") in _LOST and error.get("status") != STORAGE_REFUSED.status
    if was_lost or not scheduling.roots.ask(
        run.source or "", lambda: committed_among(step.parent, [step.name])
    ):
        return "it was deleted while it was read"
    return None
