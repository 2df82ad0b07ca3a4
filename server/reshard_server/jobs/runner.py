"""A conversion from its claim to its end: attempts, until one succeeds, is refused, or enough have died.

A problem that the library names would come again and ends the conversion. A process that dies without a
word (out of memory, killed by hand) is started again and resumes; each further time later.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from reshard.errors import ReshardError
from reshard_server.db.conversions import claims, conversions
from reshard_server.db.conversions.hard_links import held_path
from reshard_server.db.other_versions import UnreadableError, unknown_members
from reshard_server.errors.problems import INTERNAL, WORKER_DIED, ProblemError, problem_of
from reshard_server.jobs.attempt import (
    Died,
    Done,
    Outcome,
    Overran,
    Refused,
    Stopped,
    attempt,
)
from reshard_server.jobs.child_request import Roots, resolved
from reshard_server.jobs.held_claim import Holding, Order
from reshard_server.jobs.time_limits import TimeLimits
from reshard_server.schemas.conversion import Conversion, ProgressState
from reshard_server.settings import Settings
from reshard_server.worker.wording import Wording

LOG = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
BUSY_PAUSE_SECONDS = 1.0


@dataclass
class Series:
    """The attempts of one claim.

    Attributes:
        deaths: processes that died; those of servers that died are not counted, since the conversion
            is not to blame for them.
        seen: the last progress of any of them.
        waited: whether the last attempt found the target held by an earlier claim's child.
        is_left: whether it was queued again, for a server of another version.
    """

    settings: Settings
    roots: Roots
    holding: Holding
    deaths: int = 0
    waited: bool = False
    is_left: bool = False
    seen: ProgressState | None = None

    def run(self) -> None:
        """Carries the conversion out; how it ended is in its row afterwards."""
        try:
            order = self._attempts()
        except UnreadableError as unreadable:
            self._leave(unreadable.detail)
        except ProblemError as problem:
            self._fail(problem)
        except ReshardError as error:
            self._fail(problem_of(error))
        except sa.exc.SQLAlchemyError as error:
            # The row still names our claim; it is queued again when the database is back.
            LOG.warning("cannot go on: %s", error)
        except Exception:
            LOG.exception("unexpected")
            self._fail(
                ProblemError(
                    INTERNAL,
                    "the server met an error that is its own; its log has the conversion's id",
                )
            )
        else:
            if order != "go on":
                LOG.info("stopped: %s", order)
            self._obey(order)

    def _attempts(self) -> Order:
        """Attempts, until the row has its end ("go on") or there is an order to stop."""
        limits: TimeLimits | None = None
        while True:
            conversion = conversions.get(self.holding.db, self.holding.claim.conversion)
            if conversion is None:
                return "lost"
            if unknown := unknown_members(conversion.request):
                self._leave(f"this version does not know {', '.join(unknown)}")
                return "go on"
            limits = limits or TimeLimits(self.settings, conversion.request)
            outcome = self._one(conversion, limits)
            if isinstance(outcome, Stopped):
                return outcome.order
            pause = self._judge(conversion, outcome)
            if pause is None:
                return "go on"
            if (order := self.holding.pause(pause)) != "go on":
                return order

    def _one(self, conversion: Conversion, limits: TimeLimits) -> Outcome:
        holding = self.holding
        begun = claims.was_begun(holding.db, holding.claim)
        document = resolved(holding.db, self.settings, self.roots, conversion, begun=begun)
        if not self.waited and not holding.begin_attempt():
            return Stopped(
                "cancel" if claims.state_of(holding.db, holding.claim) == "cancelling" else "lost"
            )
        LOG.info("an attempt begins")
        return attempt(document, holding, limits)

    def _judge(
        self, conversion: Conversion, outcome: Done | Refused | Died | Overran
    ) -> float | None:
        """Ends the row, or says after how many seconds to try again."""
        held = held_path(self.holding.db, conversion.id)
        wording = Wording.of(self.settings.roots, conversion.request, held)
        if isinstance(outcome, Done):
            reports = wording.reports(outcome.reports)
            self.holding.finish("succeeded", result=reports, read_bytes=outcome.read_bytes)
            return None
        if isinstance(outcome, Overran):
            self._fail(outcome.problem)
            return None
        if isinstance(outcome, Died):
            return self._after_death(outcome)
        if outcome.busy and (self.waited or conversion.attempts > 0):
            self.waited = True
            LOG.info("waiting for the target, which an earlier attempt's process still holds")
            return BUSY_PAUSE_SECONDS
        self.holding.finish("failed", error=wording.problem(outcome.problem))
        return None

    def _after_death(self, died: Died) -> float | None:
        self.waited = False
        self.deaths += 1
        self.seen = died.progress or self.seen
        if self.deaths >= self.settings.attempts:
            self._fail(_gave_up(died.how, self.seen, self.deaths))
            return None
        return min(FIRST_PAUSE_SECONDS * 2.0 ** (self.deaths - 1), LONGEST_PAUSE_SECONDS)

    def _leave(self, why: str) -> None:
        """Leaves it to a server of the version that recorded it."""
        LOG.warning("left to a server of another version: %s", why)
        self.is_left = True
        self.holding.hand_back()

    def _fail(self, problem: ProblemError) -> None:
        self.holding.finish("failed", error=problem.document())

    def _obey(self, order: Order) -> None:
        if order == "cancel":
            self.holding.finish("cancelled")
        elif order == "drain":
            self.holding.hand_back()


def _gave_up(how: str, at: ProgressState | None, attempts: int) -> ProblemError:
    extra: dict[str, Any] = {"attempts": attempts}
    if at is not None:
        extra["progress"] = at.model_dump(mode="json")
    return ProblemError(
        WORKER_DIED,
        f"the process of the conversion {how} in attempt {attempts} of {attempts}, {_where(at)}; retry the "
        "conversion to resume it, with a smaller max_memory where the machine ran out of memory",
        remedy="retry the conversion to resume it",
        extra=extra,
    )


def _where(at: ProgressState | None) -> str:
    if at is None:
        return "before anything was moved"
    return f"after {at.moved_bytes} of {at.total_bytes} bytes, at the tensor {at.tensor!r}"
