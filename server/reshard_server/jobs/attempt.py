"""One attempt at a conversion: a child process from its start to its end."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from reshard_server.errors.problems import ProblemError
from reshard_server.jobs.held_claim import Holding, Order
from reshard_server.jobs.time_limits import TimeLimits
from reshard_server.schemas.conversion import ProgressState
from reshard_server.worker.parent import LEASE_ENDED
from reshard_server.worker.process import ChildProcess, Message, start_child

LOG = logging.getLogger(__name__)

LISTEN_SECONDS = 0.25
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL: what is in flight is written and recorded, so that a retry goes on there."""


@dataclass(frozen=True, slots=True)
class Done:
    """It converted.

    Attributes:
        read_bytes: what it read of the source, for all targets together.
    """

    reports: list[dict[str, Any]]
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The library refused, or failed for a reason that it names.

    Attributes:
        busy: only because another process is writing to the target.
    """

    problem: dict[str, Any]
    busy: bool


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended and did not say why.

    Attributes:
        how: ``was killed by SIGKILL`` or ``ended with status 1``.
    """

    how: str
    progress: ProgressState | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """It was stopped by an order."""

    order: Order


@dataclass(frozen=True, slots=True)
class Overran:
    """It was stopped because a limit of time was over."""

    problem: ProblemError


Outcome = Done | Refused | Died | Stopped | Overran


@dataclass
class _Heard:
    """What the child has said so far, and was told.

    Attributes:
        lease_ends: as the child knows it.
    """

    holding: Holding
    limits: TimeLimits
    child: ChildProcess
    lease_ends: float
    progress: ProgressState | None = None
    outcome: Done | Refused | None = None

    def take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if "progress" in message:
                self.progress = ProgressState.model_validate(message["progress"])
                self.holding.tell(self.progress)
                self.limits.see(self.progress)
            elif "publish" in message:
                self.child.send({"may_publish": self.holding.may_publish()})
            elif "result" in message:
                self.outcome = Done(**message["result"])
            else:
                self.outcome = Refused(message["problem"], bool(message.get("busy")))

    def renew_lease(self) -> None:
        """Tells the child of a heartbeat that was confirmed."""
        if (ends := self.holding.lease_ends()) != self.lease_ends:
            self.lease_ends = ends
            self.child.send({"lease_ends": ends})


def attempt(document: dict[str, Any], holding: Holding, limits: TimeLimits) -> Outcome:
    """Converts in a child process, which has ended when this returns."""
    lease_ends = holding.lease_ends()
    child = start_child({**document, "lease_ends": lease_ends})
    heard = _Heard(holding, limits, child, lease_ends)
    try:
        order = _watch(child, heard)
        if isinstance(order, ProblemError) or order in ("cancel", "drain"):
            _stop(child, heard)
    finally:
        code = child.close()
    if heard.outcome is not None:
        return heard.outcome
    if isinstance(order, ProblemError):
        return Overran(order)
    if order != "go on":
        return Stopped(order)
    if code == LEASE_ENDED:
        return Stopped("lost")
    LOG.error("the process %s: %s", how_ended(code), child.said())
    return Died(how_ended(code), heard.progress)


def _watch(child: ChildProcess, heard: _Heard) -> Order | ProblemError:
    """Listens until the child has ended, there is an order to stop, or a limit of time is over."""
    while not child.ended:
        heard.take(child.messages(LISTEN_SECONDS))
        heard.renew_lease()
        if (order := heard.holding.order()) != "go on":
            return order
        if (problem := heard.limits.problem()) is not None:
            return problem
    return "go on"


def _stop(child: ChildProcess, heard: _Heard) -> None:
    child.terminate()
    heard.take(child.listen_until(time.monotonic() + GRACE_SECONDS))


def how_ended(code: int) -> str:
    """A return code in words."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
