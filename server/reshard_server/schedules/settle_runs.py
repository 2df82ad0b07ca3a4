"""Settles runs: what follows when a conversion of a schedule has ended, or a process died."""

from __future__ import annotations

import logging

from reshard_server.db.conversions import hard_links
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.runs import EndedRun
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules.folder_listing import GoneError, listing
from reshard_server.schedules.hard_links import let_go
from reshard_server.schedules.retention import finish_removing, record_made, remove_old
from reshard_server.schedules.scheduling import Scheduling

LOG = logging.getLogger(__name__)


def settle(scheduling: Scheduling) -> None:
    """Deals with every conversion that has ended since: holds, outputs, history.

    Each part may be done twice, so that it is safe to die in between, and for two replicas to do it at once.
    """
    _remove_holds(scheduling)
    for run in schedule_runs.ended(scheduling.database):
        _settle(scheduling, run)


def recover(scheduling: Scheduling) -> None:
    """Deals with what processes left that died."""
    dropped = schedule_runs.release_of_dead(scheduling.database, scheduling.heard_after)
    if dropped:
        LOG.warning("%d steps are new again whose conversion was about to be started", dropped)
    schedule_runs.reopen_retried(scheduling.database)
    for output in schedule_outputs.being_removed(scheduling.database):
        stored = schedules.get(scheduling.database, output.schedule)
        if stored is not None:
            finish_removing(scheduling, stored, output)


def _remove_holds(scheduling: Scheduling) -> None:
    db = scheduling.database
    hard_links.free_ended(db)
    for hold in hard_links.left_over(db, scheduling.heard_after):
        try:
            let_go(hold.path)
        except OSError as error:
            LOG.warning("the hold %s cannot be removed: %s", hold.path, error)
        else:
            hard_links.forget(db, hold.id)


def _settle(scheduling: Scheduling, run: EndedRun) -> None:
    gone = None
    if run.state == "succeeded":
        try:
            record_made(scheduling, run.conversion)
        except ProblemError as problem:
            LOG.warning("an output of %s is not kept track of: %s", run.schedule, problem.detail)
    elif run.state == "failed":
        gone = _gone(scheduling, run)
    schedule_runs.settle(scheduling.database, run, gone=gone)
    stored = schedules.get(scheduling.database, run.schedule)
    if stored is not None and run.state == "succeeded":
        remove_old(scheduling, stored)


def _gone(scheduling: Scheduling, run: EndedRun) -> str | None:
    """Whether it failed because the step was deleted while it was read, and was not held."""
    if run.step is None or run.source is None:
        return None
    try:
        lost = listing(scheduling.roots.recheck(run.source)).lost_files
    except GoneError:
        lost = True
    except (ProblemError, OSError):
        return None
    return "it was deleted while it was read, and was not held" if lost else None
