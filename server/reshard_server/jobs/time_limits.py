"""Time limits of a conversion: for its whole run, and for a time without progress.

Each limit is the lower of the server's setting and the request's. The time counts from when a server claims the
conversion, and starts anew when another server takes over or the conversion is retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from reshard_server.errors.problems import NO_PROGRESS, RAN_TOO_LONG, Kind, ProblemError
from reshard_server.schemas.conversion import JobRequest, ProgressState
from reshard_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Limit:
    """One time limit.

    Attributes:
        name: of the setting and of the request's member.
        setting: seconds that the server allows; 0 for no limit.
        requested: seconds that the request asks for.
    """

    name: str
    setting: float
    requested: float | None

    @property
    def seconds(self) -> float | None:
        """The limit in force; None for no limit."""
        given = [
            seconds for seconds in (self.setting or None, self.requested) if seconds is not None
        ]
        return min(given, default=None)

    def is_over(self, passed: float) -> bool:
        """True if this many seconds exceed the limit."""
        return self.seconds is not None and passed > self.seconds

    def origin(self) -> str:
        """The place where the limit was set, for messages."""
        allowed = f"the server's setting {self.name} is {self.setting:g}"
        if self.requested is None:
            return allowed
        return f"{self.name} of the request is {self.requested:g}, {allowed if self.setting else 'the server has none'}"


class TimeLimits:
    """The limits of one conversion, and the progress that it reported.

    Moved bytes, finished tasks and a new stage are progress; a report without a change is not.
    """

    def __init__(
        self,
        settings: Settings,
        request: JobRequest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = Limit("run_seconds", settings.run_seconds, request.run_seconds)
        self._no_progress = Limit(
            "no_progress_seconds", settings.no_progress_seconds, request.no_progress_seconds
        )
        self._clock = clock
        self._began = self._moved = clock()
        self._last: ProgressState | None = None

    def see(self, progress: ProgressState) -> None:
        """Notes the conversion's progress."""
        if _place(progress) != _place(self._last):
            self._moved = self._clock()
        self._last = progress

    def problem(self) -> ProblemError | None:
        """The problem that ends the conversion if a limit is exceeded; else None."""
        now = self._clock()
        if self._run.is_over(now - self._began):
            return self._over(RAN_TOO_LONG, self._run, f"it ran for {now - self._began:.0f} s")
        if self._no_progress.is_over(now - self._moved):
            words = f"it moved nothing for {now - self._moved:.0f} s"
            return self._over(NO_PROGRESS, self._no_progress, words)
        return None

    def _over(self, kind: Kind, limit: Limit, what: str) -> ProblemError:
        remedy = _REMEDIES[kind.slug]
        return ProblemError(
            kind,
            f"{what}, longer than the {limit.seconds:g} s that it may ({limit.origin()}), {_where(self._last)}; {remedy}",
            None if limit.requested is None else f"/{limit.name}",
            remedy,
            {"limit": limit.name, "seconds": limit.seconds}
            | ({} if self._last is None else {"progress": self._last.model_dump(mode="json")}),
        )


_REMEDIES = {
    RAN_TOO_LONG.slug: "retry the conversion to resume it, or have the limit raised",
    NO_PROGRESS.slug: "look whether the storage hangs, and retry the conversion to resume it",
}


def _place(progress: ProgressState | None) -> tuple[str, int, int] | None:
    """A value that changes whenever the conversion makes progress."""
    if progress is None:
        return None
    return progress.stage, progress.moved_bytes, progress.tasks_done


def _where(at: ProgressState | None) -> str:
    if at is None:
        return "before anything was moved"
    of = f"{at.moved_bytes} of {at.total_bytes} bytes"
    return f"{at.stage}, with {of} moved" + (f", at the tensor {at.tensor!r}" if at.tensor else "")
