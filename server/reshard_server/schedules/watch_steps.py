"""Watches a directory: hard-links and converts each new committed step once.

In a bucket there are no hard links. A poll takes one request for each thousand names and one for each step that is new; a
step that is deleted before its conversion ends is gone, since a conversion reads only the versions that it listed.

A look costs most where the training run is idle, so looks follow the run (``poll_seconds``): ten to a step, but one in a second at most.

A step with a row was handled. New steps are claimed one by one, oldest first. Each is hard-linked, and its conversion
is queued in one transaction with its links. If a process dies in between, its claim and its links have no owner, and the
step counts as new again.

On a file system that renames, Orbax commits by a rename: a folder is a committed step if its name is a
step's, to which Orbax adds ``.orbax-checkpoint-tmp`` or ``.partial_save`` until then (``_src/path/step.py``,
``_StandardNameFormat``, which the v1 API uses as well). In a bucket it writes ``commit_success.txt`` last, so each new name is looked up
once more. Names depend on two options of the manager::

    step_prefix, step_format_fixed_length    name of step 23
    None, None                               23
    None, 4                                  0023
    "step", 4                                step_0023

transformers' Trainer names them ``checkpoint-23``; there the prefix is ``checkpoint``, which may be left out if no step is a plain number.
TensorFlow's ``ckpt-23`` is the prefix of its files: a step has an index, which is written last.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from reshard.errors import MissingError, StorageError
from reshard.formats.steps import committed_among, named_steps
from reshard.formats.tensorflow.files import prefixes_in
from reshard.storage.location import Location
from reshard_server.db.conversions import conversions, hard_links
from reshard_server.db.conversions.hard_links import LinkFolder
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.runs import StepClaim, forgotten
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.errors.problems import ProblemError, words_of
from reshard_server.schedules.hard_links import (
    GoneError,
    StoppedError,
    link_step,
    links_for,
    remove_links,
)
from reshard_server.schedules.outputs import newest_step, next_publication
from reshard_server.schedules.scheduling import (
    Occasion,
    QueueFullError,
    Run,
    Scheduling,
    is_one_by_one,
)
from reshard_server.schemas.base import LARGEST_STEP
from reshard_server.schemas.schedule import NewSteps, Outcome

LOG = logging.getLogger(__name__)


LOOKS_OF_A_STEP = 10
"""So a step is found within a tenth of the time between two steps."""

SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 10.0
"""Between two looks: a look at 1,000 steps on a disk takes 3 ms, one in a bucket is a request; ten seconds are short beside a pause of minutes."""


def poll(scheduling: Scheduling, stored: StoredSchedule, when: NewSteps, now: float) -> None:
    """Starts the new steps. Raises UnfitError if the schedule's token lost its rights."""
    directory = scheduling.watched(stored).remembered()
    pause = when.poll_seconds
    if pause is None:
        newest = schedule_runs.newest_at(scheduling.database, stored.name)
        quiet = (now - max(newest, stored.updated_at)) / LOOKS_OF_A_STEP
        pause = min(max(quiet, SHORTEST_SECONDS), LONGEST_SECONDS)
    with scheduling.database.begin() as connection:
        if not schedules.advance(connection, stored, now + pause):
            return
    try:
        there = scheduling.roots.ask(when.directory, lambda: step_folders(directory, when))
        covered = covered_steps(there, when)
        unknown = covered.keys() - schedule_runs.known_steps(scheduling.database, stored.name)
        if unknown:
            unknown -= forgotten(scheduling.database, stored.name, unknown)
        new = sorted(unknown)
        if new:
            scheduling.forget_old_runs(stored, there.keys())
            new = _not_passed(scheduling, stored, new)
        for step in _to_convert(
            scheduling, stored, when, directory, {step: covered[step] for step in new}
        ):
            occasion = occasion_of(scheduling, stored, when, step, there, now)
            claimed = schedule_runs.claim(
                scheduling.database, stored.name, step, scheduling.executor
            )
            if claimed is not None:
                start_step(scheduling, stored, claimed, occasion)
    except (StorageError, ProblemError) as error:
        LOG.warning(
            "the schedule %s cannot read %s: %s", stored.name, when.directory, words_of(error)
        )


def _to_convert(
    scheduling: Scheduling,
    stored: StoredSchedule,
    when: NewSteps,
    directory: Location,
    new: dict[int, str],
) -> Iterator[int]:
    """The committed ones of these steps, oldest first, as long as the queue takes them."""

    def has_room() -> bool:
        if scheduling.stopping.is_set():
            return False
        with scheduling.database.connect() as connection:
            waiting = conversions.count_queued(connection, stored.token)
            is_busy = is_one_by_one(stored.body) and schedule_runs.is_busy(connection, stored.name)
            # Against a backlog of steps that were the newest once: looks are short beside conversions.
            is_busy |= when.newest_only and schedule_runs.has_queued(connection, stored.name)
        return not is_busy and waiting < scheduling.settings.queued_per_token

    steps = committed(directory, new)
    if when.newest_only:
        whole = scheduling.roots.ask(when.directory, lambda: list(steps))
        for older in whole[:-1]:
            detail = f"step {whole[-1]} is newer, and this schedule converts only the newest"
            schedule_runs.skip(scheduling.database, stored.name, older, detail)
        steps = iter(whole[-1:])
    while has_room():
        step = scheduling.roots.ask(when.directory, lambda: next(steps, None))
        if step is None:
            return
        yield step


def _not_passed(scheduling: Scheduling, stored: StoredSchedule, new: list[int]) -> list[int]:
    """The new steps; for a schedule that publishes versions, only those after the newest version's."""
    if stored.body.delta is None:
        return new
    newest = newest_step(scheduling, stored)
    for step in new:
        if step < newest:
            detail = f"the step {newest} is published already, and versions go on from there"
            schedule_runs.skip(scheduling.database, stored.name, step, detail)
    return [step for step in new if step > newest]


def occasion_of(
    scheduling: Scheduling,
    stored: StoredSchedule,
    when: NewSteps,
    step: int,
    there: Mapping[int, str],
    now: float,
) -> Occasion:
    """The occasion of a step's run.

    Args:
        there: the folder of each step that is there.

    Raises ProblemError and StorageError if the versions before it cannot be read.
    """
    occasion = Occasion(f"{when.directory}/{there[step]}", now, step)
    if stored.body.delta is not None:
        return next_publication(scheduling, stored, stored.body.delta, there, occasion)
    if is_one_by_one(stored.body):
        # Against two steps within a second: a target that has only {time} would be the same.
        last = schedule_outputs.last_at(scheduling.database, stored.name)
        return replace(occasion, at=max(now, math.floor(last) + 1.0))
    return occasion


def start_step(
    scheduling: Scheduling,
    stored: StoredSchedule,
    claimed: StepClaim,
    occasion: Occasion,
    *,
    requested: bool = False,
) -> None:
    """Hard-links a claimed step and queues its conversion; the step's row has the outcome.

    Args:
        requested: a client asked for this step.

    Raises UnfitError if the schedule's token lost its rights; for a requested step also QueueFullError and
    StoppedError. Then the step is released.
    """
    ended, conversion = False, None
    try:
        again = claimed.before is not None
        run = scheduling.prepared(stored, replace(occasion, again=again))
        conversion = _link_and_queue(scheduling, claimed, run, requested=requested)
        ended = True
    except GoneError as gone:
        ended = _end(scheduling, claimed, "gone", str(gone))
    except ProblemError as problem:
        ended = _end(scheduling, claimed, "refused", problem.detail)
    except (StoppedError, QueueFullError) as error:
        if requested:
            raise
        LOG.info("step %d of %s must wait: %s", claimed.step, stored.name, error)
    finally:
        if not ended:
            schedule_runs.release(scheduling.database, claimed)
    if conversion is not None:
        scheduling.started(run, conversion)


def _link_and_queue(
    scheduling: Scheduling, claimed: StepClaim, run: Run, *, requested: bool
) -> str | None:
    """The id of the conversion; None if the claim was lost meanwhile."""
    db, source = scheduling.database, run.occasion.source
    step = scheduling.roots.readable(scheduling.caller(run.stored), source)
    if step.local is None:
        return _queued(scheduling, claimed, run, run.occasion.detail, linked=False)
    root = scheduling.roots.place_of(source.partition("/")[0])
    links = LinkFolder(claimed.text, links_for(step, root, claimed.text))
    hard_links.record(db, links, scheduling.executor)
    why, queued = "", None
    try:
        why_not = link_step(
            step.local, links.path, requested=requested, stopping=scheduling.stopping.is_set
        )
        why = "" if why_not is None else f"read without hard links: {why_not}"
        detail = "; ".join(filter(None, (run.occasion.detail, why)))
        queued = _queued(scheduling, claimed, run, detail, linked=not why)
    finally:
        if queued is None or why:
            remove_links(links.path)
            hard_links.forget(db, links.id)
    return queued


def _queued(
    scheduling: Scheduling, claimed: StepClaim, run: Run, detail: str, *, linked: bool
) -> str | None:
    with scheduling.database.begin() as connection:
        if is_one_by_one(run.stored.body):
            # Against another process that finds the step before ended at the same time.
            schedules.lock(connection, run.stored.name)
            if schedule_runs.is_busy(connection, run.stored.name):
                raise QueueFullError(
                    f"the schedule {run.stored.name!r} converts one step at a time, and is converting another one now"
                )
        made = scheduling.queue(connection, run)
        stands = schedule_runs.end_claim(
            connection, claimed, "started", conversion=made, detail=detail or None
        )
        if not stands or (linked and not hard_links.assign(connection, claimed.text, made)):
            connection.rollback()
            return None
    return made


def _end(scheduling: Scheduling, claimed: StepClaim, outcome: Outcome, why: str) -> bool:
    with scheduling.database.begin() as connection:
        return schedule_runs.end_claim(connection, claimed, outcome, detail=why)


ASKED_AT_ONCE = 16
"""Markers that are looked for before the first of these steps is handled."""


def step_folders(directory: Location, when: NewSteps) -> dict[int, str]:
    """The name of the folder or the prefix of each step, in the order of the steps; in a bucket some may not be committed yet.

    Without a prefix or digits in the schedule, names are plain numbers; if there are none, any names of ``reshard steps``.
    A directory that does not exist has none yet. Raises StorageError if it cannot be listed.
    """
    pattern = _pattern(when)
    try:
        names = [entry.name for entry in directory.entries() if entry.is_folder]
        names += prefixes_in(directory)
        found = {int(m[1]): name for name in names if (m := pattern.fullmatch(name))}
        if not found and when.step_prefix is None and when.step_digits is None:
            # Of one step with several names the first counts, as for ``reshard steps``.
            found = {one.step: one.name for one in reversed(named_steps(directory))}
    except StorageError as error:
        is_missing = isinstance(error, MissingError) and not error.fault
        if is_missing or isinstance(error.__cause__, FileNotFoundError):
            return {}
        raise
    return {step: found[step] for step in sorted(found) if step <= LARGEST_STEP}


def committed(directory: Location, folders: dict[int, str]) -> Iterator[int]:
    """Those of these steps that are committed, in their order.

    They are looked for a few at a time, so steps that are not taken from the iterator cost no request. Raises StorageError.
    """
    steps = iter(folders)
    while batch := list(islice(steps, ASKED_AT_ONCE)):
        names = set(committed_among(directory, [folders[step] for step in batch]))
        yield from (step for step in batch if folders[step] in names)


def covered_steps(steps: dict[int, str], when: NewSteps) -> dict[int, str]:
    """The steps that the schedule covers."""
    return {
        step: name
        for step, name in steps.items()
        if step % when.every == 0 and step >= when.first_step
    }


def _pattern(when: NewSteps) -> re.Pattern[str]:
    digits = when.step_digits
    number = "0|[1-9][0-9]*"
    if digits is not None:
        number = f"0[0-9]{{{digits - 1}}}|[1-9][0-9]{{{digits - 1}}}[0-9]*"
    prefix = "" if when.step_prefix is None else f"{re.escape(when.step_prefix)}[_-]"
    return re.compile(f"{prefix}({number})", re.DOTALL)
