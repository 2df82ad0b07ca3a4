"""Decides the version of the weights that a step becomes: a full one, or a delta on the version before.

The versions of a schedule are consecutive, one at a time: a step waits until the version before it is published or has failed, so that a
failure leaves no hole. The folder counts, not the plan::

    weight_v000001   full     the first one
    weight_v000002   delta    on weight_v000001: the two are compared
    weight_v000003   delta    on weight_v000002: the step of that version is compared, by the same map
    weight_v000004   full     the training run had deleted that step, or ``anchor_every`` was reached

If a delta cannot be made after all, its conversion makes a full version (``worker.make_delta``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from reshard.formats.delta.read_delta import version_of_name
from reshard.formats.delta.version_id import version_text
from reshard.storage.location import Location
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.db.schedules import runs as schedule_runs
from reshard_server.db.schedules import schedules
from reshard_server.db.schedules.outputs import Output
from reshard_server.db.schedules.schedules import StoredSchedule
from reshard_server.schedules.made_outputs import is_full_version, output_stamp
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schemas.schedule import PublishedVersions


@dataclass(frozen=True, slots=True)
class Publication:
    """The form in which a step is published.

    Attributes:
        old: the client's path of the checkpoint that a delta is compared with; None for a full version.
        why: the reason, for the history of the schedule.
    """

    version: int
    old: str | None
    why: str

    @property
    def detail(self) -> str:
        """A line of the history."""
        return f"version {version_text(self.version)}: {self.why}"


def folder_of(stored: StoredSchedule) -> str:
    """The client's path of the folder of the versions."""
    return stored.body.targets[0].target.rpartition("/")[0].replace("{name}", stored.name)


def is_publishing(connection: sa.Connection, stored: StoredSchedule) -> bool:
    """True if the version before is not published yet. Until the end of the transaction no other process can begin one."""
    schedules.lock(connection, stored.name)
    return schedule_runs.is_busy(connection, stored.name)


def newest_step(scheduling: Scheduling, stored: StoredSchedule) -> int:
    """The latest step that was published; -1 for none."""
    made = _made(scheduling, stored)
    return max((output.step for output in made if output.step is not None), default=-1)


def next_publication(
    scheduling: Scheduling,
    stored: StoredSchedule,
    section: PublishedVersions,
    steps: Mapping[int, str],
    directory: str,
) -> Publication:
    """The next version: a delta on the one before, if that and its source are there.

    Args:
        steps: the folder of each step that is there, below ``directory``.

    Raises ProblemError and StorageError if the folder of the versions cannot be read.
    """
    folder = folder_of(stored)
    place = scheduling.roots.writable(scheduling.caller(stored), folder)
    highest = scheduling.roots.ask(folder, lambda: _highest(place))
    made = _made(scheduling, stored)
    version = max(highest, *(_version(output) for output in made), 0) + 1
    if not made:
        return Publication(version, None, "the first of this schedule")
    last, before = made[-1], version_text(version - 1)
    if _version(last) != version - 1 or highest != version - 1 or not _is_same(scheduling, last):
        return Publication(
            version,
            None,
            f"a full one, since the version {before} is not this schedule's, or is gone",
        )
    since = _deltas_since_full(scheduling, made, section.anchor_every)
    if since >= section.anchor_every - 1:
        return Publication(version, None, f"a full one, as every {section.anchor_every} versions")
    if since == 0:
        return Publication(version, last.target, f"a delta on the version {before}")
    name = None if last.step is None else steps.get(last.step)
    if name is None:
        why = f"a full one, since the step {last.step}, of which the version {before} was made, is gone"
        return Publication(version, None, why)
    return Publication(version, f"{directory}/{name}", f"a delta on the version {before}")


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


def _is_same(scheduling: Scheduling, output: Output) -> bool:
    place = scheduling.roots.recheck(output.target)
    return scheduling.roots.ask(output.target, lambda: output_stamp(place)) == output.stamp


def _deltas_since_full(scheduling: Scheduling, made: list[Output], most: int) -> int:
    """The number of newest versions in a row that are deltas, counted up to ``most``."""
    for count, output in enumerate(reversed(made[-most:])):
        if _is_full(scheduling, output):
            return count
    return most


def _is_full(scheduling: Scheduling, output: Output) -> bool:
    place = scheduling.roots.recheck(output.target)
    return scheduling.roots.ask(output.target, lambda: is_full_version(place))


def kept_versions(scheduling: Scheduling, existing: list[Output], keep: int) -> set[str]:
    """Ids of the newest versions and of all their bases."""
    ordered = sorted(existing, key=_version)
    kept = ordered[-keep:]
    for output in reversed(ordered[:-keep]):
        if _is_full(scheduling, kept[0]):
            break
        kept.insert(0, output)
    return {output.id for output in kept}
