"""One attempt at a conversion: its child process, its claim, and its time limits.

A limit of time is the lower of the server's setting and the request's. The time counts from when a server claims the
conversion, and starts anew when another server takes over or the conversion is retried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import sqlalchemy as sa

from reshard_server.db.conversions import claims
from reshard_server.db.conversions.claims import Claim, End
from reshard_server.db.conversions.parts import Split
from reshard_server.errors.error_handlers import unavailable
from reshard_server.errors.problems import NO_PROGRESS, RAN_TOO_LONG, Kind, ProblemError
from reshard_server.host_clock import host_seconds
from reshard_server.schemas.conversion import (
    JobRequest,
    ProgressState,
)
from reshard_server.settings import Settings
from reshard_server.worker.child import LEASE_ENDED
from reshard_server.worker.children import ChildProcess, Children, Message, how_ended

LOG = logging.getLogger(__name__)

LISTEN_SECONDS = 0.25
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL: the child writes and records the chunks in flight, so that a retry resumes there."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The child converted.

    Attributes:
        read_bytes: encoded bytes of the source that it read, for all targets; None for a delta.
    """

    reports: list[dict[str, Any]]
    read_bytes: int | None


@dataclass(frozen=True, slots=True)
class Begun:
    """The child planned the parts, and recorded their request at the targets.

    Attributes:
        already_done: True if the targets are finished.
        anew: True if what was begun before could not be resumed, and was removed.
    """

    parts: int
    total_bytes: int
    already_done: bool
    anew: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The library refused, or failed for a named reason.

    Attributes:
        busy: True if another process is writing to the target.
    """

    problem: dict[str, Any]
    busy: bool


@dataclass(frozen=True, slots=True)
class Died:
    """The child ended without a message.

    Attributes:
        how: ``was killed by SIGKILL`` or ``ended with status 1``.
    """

    how: str
    progress: ProgressState | None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An order stopped the child."""

    order: Order


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The child was stopped because a time limit was over."""

    problem: ProblemError


Outcome = Converted | Begun | Refused | Died | Interrupted | TimedOut


@dataclass
class _Conversation:
    """The messages from the child so far, and the lease that it was sent.

    Attributes:
        lease_ends: the end that the child knows.
    """

    claim: OwnClaim
    limits: TimeLimits
    child: ChildProcess
    lease_ends: float
    progress: ProgressState | None = None
    outcome: Converted | Begun | Refused | None = None

    def receive(self, messages: Iterable[Message]) -> None:
        """Acts on the child's messages."""
        for message in messages:
            if "progress" in message:
                self.progress = ProgressState.model_validate(message["progress"])
                self.claim.report(self.progress)
                self.limits.see(self.progress)
            elif "publish" in message:
                self.child.send({"may_publish": self.claim.may_publish()})
            elif "result" in message:
                self.outcome = Converted(**message["result"])
            elif "begun" in message:
                self.outcome = Begun(**message["begun"])
            else:
                if "log" in message:
                    LOG.warning("%s", message["log"])
                self.outcome = Refused(message["problem"], bool(message.get("busy")))

    def renew_lease(self) -> None:
        """Sends the child the new end of the lease after a confirmed heartbeat."""
        if (ends := self.claim.lease_ends()) != self.lease_ends:
            self.lease_ends = ends
            self.child.send({"lease_ends": ends})


def attempt(
    document: dict[str, Any], claim: OwnClaim, limits: TimeLimits, children: Children
) -> Outcome:
    """Converts in a child process, which has ended when this returns."""
    lease_ends = claim.lease_ends()
    try:
        child = children.start({**document, "lease_ends": lease_ends})
    except OSError as error:  # out of processes or descriptors: try again
        LOG.error("no process could be started: %s", error)
        return Died("could not be started", None)
    conversation = _Conversation(claim, limits, child, lease_ends)
    try:
        order = _watch(child, conversation)
        if isinstance(order, ProblemError) or order in ("cancel", "drain"):
            _stop(child, conversation)
    finally:
        code = child.close()
    if conversation.outcome is not None:
        return conversation.outcome
    if isinstance(order, ProblemError):
        return TimedOut(order)
    if order != "continue":
        return Interrupted(order)
    if code == LEASE_ENDED:
        return Interrupted("lost")
    LOG.error("the process %s: %s", how_ended(code), child.error_output())
    return Died(how_ended(code), conversation.progress)


def _watch(child: ChildProcess, conversation: _Conversation) -> Order | ProblemError:
    """Listens until the child has ended, an order stops it, or a time limit is over."""
    while not child.ended:
        conversation.receive(child.messages(LISTEN_SECONDS))
        conversation.renew_lease()
        if (order := conversation.claim.order()) != "continue":
            return order
        if (problem := conversation.limits.problem()) is not None:
            return problem
    return "continue"


def _stop(child: ChildProcess, conversation: _Conversation) -> None:
    child.terminate()
    conversation.receive(child.listen_until(time.monotonic() + GRACE_SECONDS))


Order = Literal["continue", "cancel", "drain", "lost"]
"""drain: this server ends, and another may continue. lost: another server has the conversion, or will soon."""

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""Between two reads of the row, and between two changes of its progress."""


@dataclass
class OwnClaim:
    """A claim on a conversion, and the database that decides whether it still stands.

    Attributes:
        draining: set when this server ends.
        patience: seconds without the database after which the claim counts as lost.
        lease_ends: returns when this process's lease ends, by ``host_seconds``.
        attempt: number of the last attempt that was begun.
    """

    db: sa.Engine
    claim: Claim
    draining: threading.Event
    patience: float
    lease_ends: Callable[[], float]
    attempt: int = 0
    _progress: ProgressState | None = None
    _read_at: float = field(default_factory=time.monotonic)
    _answered_at: float = field(default_factory=time.monotonic)

    def report(self, progress: ProgressState) -> None:
        """Keeps the newest progress until the row is read next."""
        self._progress = progress

    def order(self) -> Order:
        """The present order; reads the row at most every half second."""
        if self.draining.is_set():
            return "drain"
        # Against two processes with one conversion: others take this process for dead from now on.
        if host_seconds() > self.lease_ends():
            LOG.warning("the lease has ended: the database confirmed no heartbeat")
            return "lost"
        now = time.monotonic()
        if now - self._read_at < LOOK_SECONDS:
            return "continue"
        self._read_at = now
        return self._read_order()

    def _read_order(self) -> Order:
        progress, self._progress = self._progress, None
        try:
            if progress is None:
                state = claims.state_of(self.db, self.claim)
            else:
                state = claims.set_progress(self.db, self.claim, progress)
        except sa.exc.SQLAlchemyError as error:
            LOG.warning("cannot reach the database: %s", error)
            return "lost" if time.monotonic() - self._answered_at > self.patience else "continue"
        self._answered_at = time.monotonic()
        if state is None:
            return "lost"
        return "cancel" if state == "cancelling" else "continue"

    def pause(self, seconds: float) -> Order:
        """Waits; returns sooner with any order other than to continue."""
        end = time.monotonic() + seconds
        while (order := self.order()) == "continue" and (left := end - time.monotonic()) > 0:
            self.draining.wait(min(left, LOOK_SECONDS))
        return order

    def begin_attempt(self) -> bool:
        """Counts an attempt; False if the claim was lost or the conversion is to be cancelled."""
        number = self._insist(lambda: claims.begin_attempt(self.db, self.claim))
        self.attempt = number or 0
        return bool(number)

    def may_publish(self) -> bool:
        """True if this attempt is still the conversion's own; False if the database does not confirm it."""
        try:
            return claims.may_publish(self.db, self.claim, self.attempt)
        except sa.exc.SQLAlchemyError as error:
            # Against publishing without the claim: another process may have it by now.
            LOG.warning("cannot reach the database: %s", error)
            return False

    def finish(
        self,
        state: End,
        result: list[dict[str, Any]] | None = None,
        error: dict[str, Any] | None = None,
        read_bytes: int | None = None,
    ) -> bool:
        """Writes the end of the conversion or the part; False if the claim was lost. The error of a part names it and its host."""
        part, host = self.claim.part, self.claim.host
        if error is not None and part is not None:
            said = f"part {part} of {self.claim.parts} on the host {host}: {error['detail']}"
            error = {**error, "detail": said, "part": part, "host": host}
        values: dict[str, Any] = {"result": result, "error": error, "read_bytes": read_bytes}
        values["progress"] = self._progress
        ended = bool(self._insist(lambda: claims.finish(self.db, self.claim, state, **values)))
        if ended:
            level = logging.WARNING if state == "failed" else logging.INFO
            why = {} if error is None else {"problem": error["type"], "detail": error["detail"]}
            LOG.log(level, "ended", extra={"state": state, **why})
        return ended

    def split(self, found: Split) -> bool:
        """Queues the parts, for which the conversion waits from now on; False if the claim was lost."""
        return bool(self._insist(lambda: claims.split(self.db, self.claim, found)))

    def hand_back(self) -> None:
        """Queues the conversion again for another server."""
        self._insist(lambda: claims.hand_back(self.db, self.claim))

    def _insist(self, change: Callable[[], T | None]) -> T | None:
        """Repeats a change while the database is out of reach; None when the patience ends."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return change()
            except sa.exc.SQLAlchemyError as error:
                if unavailable(error) is None:
                    raise
                LOG.warning("cannot reach the database: %s", error)
                if time.monotonic() > end:
                    return None
            time.sleep(LOOK_SECONDS)


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
        limits = (self.setting or None, self.requested)
        return min((seconds for seconds in limits if seconds is not None), default=None)

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
        self, settings: Settings, request: JobRequest, clock: Callable[[], float] = time.monotonic
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
