"""TotalProgress: the progress of a run with several targets, from the progress of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from msgspec.structs import replace

from reshard.engine.progress import Progress, Stage

Tell = Callable[[Progress], None]


class TotalProgress:
    """Adds up the progress of several targets while bytes are copied.

    A target reports at the latest when its first task is done; until then its bytes are known from
    ``expect``.

    Attributes:
        listener: gets the sums; None where nobody listens.
    """

    def __init__(self, listener: Tell | None) -> None:
        self.listener = listener
        self._latest: dict[int, Progress] = {}

    def of(self, number: int) -> Tell | None:
        """What target ``number`` calls with its own progress."""
        return None if self.listener is None else partial(self._add, self.listener, number)

    def expect(self, number: int, total_bytes: int, tasks: int) -> None:
        """Counts a target of which nothing is done yet."""
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
