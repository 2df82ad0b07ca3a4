"""The services that all routes share; opened once, when the application starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from reshard import check_arguments
from reshard_server.auth.limits import Drain, RateLimits, Slots, Streams
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.sessions import Sessions
from reshard_server.auth.tokens import TokenReloader, Tokens, load_tokens
from reshard_server.db.clock import clock_of
from reshard_server.db.connections import Listener
from reshard_server.db.conversions.conversions import Feed
from reshard_server.db.conversions.created import BatchRecorder
from reshard_server.db.database import open_database, state_locked
from reshard_server.jobs.ask import Questions
from reshard_server.jobs.queue import JobQueue
from reshard_server.observability.logs import audit
from reshard_server.observability.metrics import Metrics
from reshard_server.schedules.loop import ScheduleLoop
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.settings import Settings
from reshard_server.worker.children import Children
from reshard_server.worker.wording import RootNames

T = TypeVar("T")

CHECKERS = 4
"""Threads that check the paths of new conversions; if a storage hangs, only they hang."""

FINDERS = 48
"""Threads that look for checkpoints; more than one bucket that hangs may take (``auth.root_paths``)."""

PINGERS = 2
"""Threads that ping the database; if it does not answer, only these threads wait."""

BROWSERS = 2
"""Threads that list checkpoints for forms; if a storage hangs, the form shows none."""

LOOKERS = 4
"""Threads that query the records for requests; more would only wait for each other and the interpreter."""


@dataclass(frozen=True)
class Services:
    """The settings, the records and everything else that lives as long as the server.

    Attributes:
        lookers: the threads that query the records about conversions.
        checkers: the threads that check new requests.
        finders: the threads that look for checkpoints, on disks and in buckets.
        pingers: the threads that ping the database.
        recorder: records new conversions.
        names: of the roots; and the folders that no client may see.
    """

    settings: Settings
    database: sa.Engine
    tokens: Tokens
    sessions: Sessions
    roots: Roots
    queue: JobQueue
    questions: Questions
    scheduling: Scheduling
    rates: RateLimits
    streams: Streams
    feed: Feed
    drain: Drain
    metrics: Metrics
    lookers: CapacityLimiter
    checkers: CapacityLimiter
    finders: CapacityLimiter
    pingers: CapacityLimiter
    browsers: CapacityLimiter
    recorder: BatchRecorder
    names: RootNames

    async def find(self, call: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """The result of a call with these services, in one of the threads that look for checkpoints."""
        asked = partial(call, self, *arguments, **more)
        return await run_sync(asked, limiter=self.finders)


@dataclass(frozen=True)
class Working:
    """The records, and what carries conversions out: all that ``reshard work`` has, and a part of a server."""

    database: sa.Engine
    children: Children
    queue: JobQueue


@contextmanager
def open_work(settings: Settings, roots: Roots) -> Iterator[Working]:
    """Opens the records, claims conversions from them, and stops in good order.

    Raises ReshardError if the records cannot be used, or another process works on the state folder.
    """
    with ExitStack() as opened:
        opened.enter_context(state_locked(settings))
        database = open_database(settings)
        opened.callback(database.dispose)
        if database.dialect.name == "postgresql":
            listener = Listener(database)
            listener.launch()
            opened.callback(listener.close)
        children = Children()
        opened.callback(children.close)
        queue = JobQueue(settings, database, roots, children)
        queue.launch()
        opened.callback(queue.close)
        yield Working(database, children, queue)


@contextmanager
def open_services(settings: Settings, drain: Drain, metrics: Metrics) -> Iterator[Services]:
    """Opens all services, and closes them in the opposite order.

    Raises ReshardError if something cannot be opened.
    """
    check_arguments()  # imports the modules that it needs, so that the first request need not wait
    tokens, roots = load_tokens(settings), Roots.of(settings.roots)
    with ExitStack() as opened:
        working = opened.enter_context(open_work(settings, roots))
        database, children, queue = working.database, working.children, working.queue
        names = RootNames.of(settings.roots, settings.state, Path(__file__).parent)
        looks, reads = _slots(settings, "looks"), _slots(settings, "reads")
        questions = Questions(names, drain, looks, reads, children)
        opened.callback(questions.close)
        scheduling = Scheduling(settings, database, tokens, roots, queue.executor, queue.wake)
        ticking = ScheduleLoop(scheduling)
        ticking.launch()
        opened.callback(ticking.close)
        streams = Streams(_slots(settings, "streams"))
        metrics.watch(database, streams)
        lookers = CapacityLimiter(LOOKERS)
        sessions = Sessions(database, tokens, settings.session_hours * 3600, clock_of(database).now)
        reloading = TokenReloader(
            settings,
            tokens,
            sessions.end_of_hash,
            lambda words: audit("tokens", caller=None, detail=words),
        )
        reloading.launch()
        opened.callback(reloading.close)
        yield Services(
            settings,
            database,
            tokens,
            sessions,
            roots,
            queue,
            questions,
            scheduling,
            RateLimits(settings.requests_per_minute),
            streams,
            Feed(database),
            drain,
            metrics,
            lookers,
            CapacityLimiter(CHECKERS),
            CapacityLimiter(FINDERS),
            CapacityLimiter(PINGERS),
            CapacityLimiter(BROWSERS),
            BatchRecorder(database, settings.queued_per_token, lookers),
            names,
        )


def _slots(settings: Settings, kind: Literal["looks", "reads", "streams"]) -> Slots:
    """The slots of one kind; without tokens all clients count as one token, which may take all slots."""
    most: int = getattr(settings, kind)
    return Slots(most, most if settings.insecure else getattr(settings, f"{kind}_per_token"))
