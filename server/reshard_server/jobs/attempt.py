"""One attempt at a conversion: a child process from its start to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from reshard_server.errors.problems import ProblemError
from reshard_server.jobs.held_claim import HeldClaim, Order
from reshard_server.jobs.time_limits import TimeLimits
from reshard_server.schemas.conversion import ProgressState
from reshard_server.worker.children import Children
from reshard_server.worker.parent import LEASE_ENDED
from reshard_server.worker.process import ChildProcess, Message, how_ended

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


Outcome = Converted | Refused | Died | Interrupted | TimedOut


@dataclass
class _Conversation:
    """The messages from the child so far, and the lease that it was sent.

    Attributes:
        lease_ends: the end that the child knows.
    """

    claim: HeldClaim
    limits: TimeLimits
    child: ChildProcess
    lease_ends: float
    progress: ProgressState | None = None
    outcome: Converted | Refused | None = None

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
    document: dict[str, Any], claim: HeldClaim, limits: TimeLimits, children: Children
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
