"""Time limits of a conversion: how long it may run, and how long it may run without moving.

Both are the lower one of the server's setting and the request's own. They are counted while one server carries the
conversion out, and anew where another takes it over, or it is retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from reshard_server.errors.problems import NO_PROGRESS, RAN_TOO_LONG, Kind, ProblemError
from reshard_server.schemas.conversion import ConversionRequest, ProgressState
from reshard_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds, and which limit that is.

    Attributes:
        setting: what the server allows; 0: any time.
        asked: what the request asks for.
    """

    name: str
    setting: float
    asked: float | None

    @property
    def seconds(self) -> float | None:
        """None: any time."""
        given = [seconds for seconds in (self.setting or None, self.asked) if seconds is not None]
        return min(given, default=None)

    def is_over(self, passed: float) -> bool:
        """Whether so many seconds are too many."""
        return self.seconds is not None and passed > self.seconds

    def origin(self) -> str:
        """Where it was set, in words."""
        allowed = f"the server's setting {self.name} is {self.setting:g}"
        if self.asked is None:
            return allowed
        return f"{self.name} of the request is {self.asked:g}, {allowed if self.setting else 'the server has none'}"


class TimeLimits:
    """The limits of one conversion, and what it was seen to do.

    Bytes that move, tasks that end and another stage are progress; the same told again is none.
    """

    def __init__(
        self,
        settings: Settings,
        request: ConversionRequest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = Limit("run_seconds", settings.run_seconds, request.run_seconds)
        self._no_progress = Limit(
            "no_progress_seconds", settings.no_progress_seconds, request.no_progress_seconds
        )
        self._clock = clock
        self._began = self._moved = clock()
        self._seen: ProgressState | None = None

    def see(self, progress: ProgressState) -> None:
        """Notes how far it is."""
        if _place(progress) != _place(self._seen):
            self._moved = self._clock()
        self._seen = progress

    def problem(self) -> ProblemError | None:
        """The problem where a limit is over; the conversion is to be ended then."""
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
            f"{what}, longer than the {limit.seconds:g} s that it may ({limit.origin()}), {_where(self._seen)}; {remedy}",
            None if limit.asked is None else f"/{limit.name}",
            remedy,
            {"limit": limit.name, "seconds": limit.seconds}
            | ({} if self._seen is None else {"progress": self._seen.model_dump(mode="json")}),
        )


_REMEDIES = {
    RAN_TOO_LONG.slug: "retry the conversion to resume it, or have the limit raised",
    NO_PROGRESS.slug: "look whether the storage hangs, and retry the conversion to resume it",
}


def _place(progress: ProgressState | None) -> tuple[str, int, int] | None:
    """What of it is progress."""
    if progress is None:
        return None
    return progress.stage, progress.moved_bytes, progress.tasks_done


def _where(at: ProgressState | None) -> str:
    if at is None:
        return "before anything was moved"
    of = f"{at.moved_bytes} of {at.total_bytes} bytes"
    return f"{at.stage}, with {of} moved" + (f", at the tensor {at.tensor!r}" if at.tensor else "")
