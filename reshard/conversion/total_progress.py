"""TotalProgress: the progress of a run with several targets, from the progress of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from reshard.engine.progress import Progress, Stage

Tell = Callable[[Progress], None]


class TotalProgress:
    """Adds up what the ledgers of several targets say while bytes are copied.

    Every target is expected to tell once, at the latest when the first task of it is done; until
    then its bytes are known from ``expect``.
    """

    def __init__(self, progress: Tell) -> None:
        self._progress = progress
        self._latest: dict[int, Progress] = {}

    def of(self, number: int) -> Tell:
        """What target ``number`` is to tell."""
        return partial(self._tell, number)

    def expect(self, number: int, total_bytes: int, tasks: int) -> None:
        """Counts a target of which nothing is done yet."""
        self._latest[number] = Progress(0, total_bytes, 0, tasks, "")

    def end(self, stage: Stage) -> None:
        """Says that everything was copied, and what comes now."""
        total = self._sum("")
        self._progress(
            replace(total, moved_bytes=total.total_bytes, tasks_done=total.tasks, stage=stage)
        )

    def _tell(self, number: int, progress: Progress) -> None:
        if progress.stage != "copying":
            self._progress(progress)
            return
        self._latest[number] = progress
        self._progress(self._sum(progress.tensor))

    def _sum(self, tensor: str) -> Progress:
        every = self._latest.values()
        return Progress(
            sum(p.moved_bytes for p in every),
            sum(p.total_bytes for p in every),
            sum(p.tasks_done for p in every),
            sum(p.tasks for p in every),
            tensor,
            resumed_bytes=sum(p.resumed_bytes for p in every),
        )
