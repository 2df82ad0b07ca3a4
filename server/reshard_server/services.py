"""What every route works with; made once, when the application starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from anyio import CapacityLimiter

from reshard.api import check_arguments
from reshard_server.access.paths import Roots
from reshard_server.access.rates import Rates
from reshard_server.access.sessions import Sessions
from reshard_server.access.streams import Streams
from reshard_server.access.tokens import Tokens, load_tokens
from reshard_server.drain import Drain
from reshard_server.metrics import Metrics
from reshard_server.records.database import open_database
from reshard_server.records.feed import Feed
from reshard_server.records.together import Together
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.schedules.ticking import Ticking
from reshard_server.settings import Settings
from reshard_server.work.durable import Durable
from reshard_server.work.questions import Questions
from reshard_server.work.wording import RootNames

CHECKERS = 4
"""Threads that look at paths for conversions that are asked for: where a storage hangs they do, and no others."""

LOOKERS = 4
"""Threads that ask the records for requests; more would only wait for each other and for the interpreter."""


@dataclass(frozen=True)
class Services:
    """Settings, records and everything else that lives as long as the server.

    Attributes:
        lookers: the threads that look into the records for requests about conversions.
        checkers: the threads that check what is asked for.
        together: records the conversions that are asked for.
    """

    settings: Settings
    database: sa.Engine
    tokens: Tokens
    sessions: Sessions
    roots: Roots
    durable: Durable
    questions: Questions
    scheduling: Scheduling
    rates: Rates
    streams: Streams
    feed: Feed
    drain: Drain
    metrics: Metrics
    lookers: CapacityLimiter
    checkers: CapacityLimiter
    together: Together


@contextmanager
def open_services(settings: Settings, drain: Drain, metrics: Metrics) -> Iterator[Services]:
    """Everything opened, and closed again in the opposite order.

    Raises ReshardError where something cannot be opened.
    """
    check_arguments()  # loads what checking takes, so that the first request need not wait
    tokens, roots = load_tokens(settings), Roots(settings.roots)
    settings.state.mkdir(0o700, parents=True, exist_ok=True)  # who asked for what is no one else's
    database = open_database(settings)
    try:
        durable = Durable(settings, database, roots)
        names = RootNames.of(settings.roots)
        questions = Questions(names, drain, settings.looks, settings.reads)
        durable.launch()
        scheduling = Scheduling(
            settings, database, tokens, roots, durable.executor, durable.enqueue
        )
        ticking = Ticking(scheduling)
        try:
            ticking.launch()
            streams = Streams(settings.streams)
            metrics.watch(database, streams)
            lookers = CapacityLimiter(LOOKERS)
            yield Services(
                settings,
                database,
                tokens,
                Sessions(database, tokens, settings.session_hours * 3600),
                roots,
                durable,
                questions,
                scheduling,
                Rates(settings.requests_per_minute),
                streams,
                Feed(database),
                drain,
                metrics,
                lookers,
                CapacityLimiter(CHECKERS),
                Together(database, settings.queued_per_token, lookers),
            )
        finally:
            ticking.close()
            questions.close()
            durable.close()
    finally:
        database.dispose()
