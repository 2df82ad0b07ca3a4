"""Progress: the state of a run, reported after each piece of work. TotalProgress: that of several targets, added up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Literal

from msgspec.structs import replace

from reshard.answers.record import Record

Stage = Literal[
    "checking",
    "copying",
    "reading back",
    "identifying",
    "syncing",
    "restoring",
    "reading",
    "reading files",
    "comparing",
]


class Progress(Record, frozen=True):
    """The progress of a run; bytes are the source's, as decoded.

    Attributes:
        resumed_bytes: the part of ``moved_bytes`` that an earlier, unfinished run moved.
        hosts: bytes that other hosts moved in this run, by the host's name; empty for a run on one host. It grows with the run.
    """

    moved_bytes: int
    total_bytes: int
    tasks_done: int
    tasks: int
    tensor: str
    stage: Stage = "copying"
    resumed_bytes: int = 0
    hosts: Mapping[str, int] = {}


Tell = Callable[[Progress], None]
"""A function that is called with the progress of a run, after each piece of work."""


def tell_files(
    sizes: Mapping[str, int], progress: Callable[[Progress], None] | None
) -> Callable[[str], None]:
    """A function to be called with each file's name before it is read; it reports the bytes read until then."""
    total, done, count = sum(sizes.values()), 0, 0

    def read(name: str) -> None:
        nonlocal done, count
        if progress is not None:
            progress(Progress(done, total, count, len(sizes), name, "reading files"))
        done, count = done + sizes[name], count + 1

    return read


def tell_bytes(
    total_bytes: int, stage: Stage, progress: Callable[[Progress], None] | None
) -> Callable[[str, int], None]:
    """A function to be called with a tensor and the bytes that a task has read of it; the number of tasks is not known before."""
    done, count = 0, 0

    def tell(tensor: str, nbytes: int) -> None:
        nonlocal done, count
        done, count = done + nbytes, count + 1
        if progress is not None:
            progress(Progress(done, total_bytes, count, count, tensor, stage))

    return tell


class TotalProgress:
    """Adds up the progress of several targets while bytes are copied.

    A target reports at the latest when its first task is done; until then its bytes are known from
    ``expect``.

    Attributes:
        listener: gets the sums; None without one.
    """

    def __init__(self, listener: Tell | None) -> None:
        self.listener = listener
        self._latest: dict[int, Progress] = {}

    def of(self, number: int) -> Tell | None:
        """The function that target ``number`` calls with its own progress; None without a listener."""
        return None if self.listener is None else partial(self._add, self.listener, number)

    def expect(self, number: int, total_bytes: int, tasks: int) -> None:
        """Counts a target that has no task done yet."""
        self._latest[number] = Progress(0, total_bytes, 0, tasks, "")

    def end(self, stage: Stage) -> None:
        """Reports that everything is copied, and the stage that comes now."""
        if self.listener is None:
            return
        total = self._sum("")
        self.listener(
            replace(total, moved_bytes=total.total_bytes, tasks_done=total.tasks, stage=stage)
        )

    def _add(self, listener: Tell, number: int, progress: Progress) -> None:
        if progress.stage != "copying":
            listener(progress)
            return
        self._latest[number] = progress
        listener(self._sum(progress.tensor))

    def _sum(self, tensor: str) -> Progress:
        every = self._latest.values()
        return Progress(
            sum(p.moved_bytes for p in every),
            sum(p.total_bytes for p in every),
            sum(p.tasks_done for p in every),
            sum(p.tasks for p in every),
            tensor,
            resumed_bytes=sum(p.resumed_bytes for p in every),
            hosts=_by_host(every),
        )


def _by_host(every: Collection[Progress]) -> Mapping[str, int]:
    if len(every) == 1:
        return next(iter(every)).hosts
    found: dict[str, int] = {}
    for progress in every:
        for host, nbytes in progress.hosts.items():
            found[host] = found.get(host, 0) + nbytes
    return found
