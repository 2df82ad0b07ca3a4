"""What every route works with; made once, when the application starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from anyio import CapacityLimiter

from reshard import check_arguments
from reshard_server.auth.paths import Roots
from reshard_server.auth.rates import Rates
from reshard_server.auth.reload_tokens import Reloading
from reshard_server.auth.sessions import Sessions
from reshard_server.auth.slots_per_token import Places
from reshard_server.auth.streams import Streams
from reshard_server.auth.tokens import Tokens, load_tokens
from reshard_server.db.clock import clock_of
from reshard_server.db.conversions.batching import Together
from reshard_server.db.conversions.change_feed import Feed
from reshard_server.db.database import open_database
from reshard_server.db.listen import Listener
from reshard_server.db.state_lock import state_locked
from reshard_server.drain import Drain
from reshard_server.jobs.queue import Durable
from reshard_server.observability.audit import audit
from reshard_server.observability.metrics import Metrics
from reshard_server.queries.ask import Questions
from reshard_server.schedules.loop import Ticking
from reshard_server.schedules.scheduling import Scheduling
from reshard_server.settings import Settings
from reshard_server.worker.wording import RootNames

CHECKERS = 4
"""Threads that look at paths for conversions that are asked for: where a storage hangs they do, and no others."""

PINGERS = 2
"""Threads that ask whether the database answers: where it does not they wait, and no others."""

BROWSERS = 2
"""Threads that look for checkpoints that a form offers: where a storage hangs they do, and the form does without."""

LOOKERS = 4
"""Threads that ask the records for requests; more would only wait for each other and for the interpreter."""


@dataclass(frozen=True)
class Services:
    """Settings, records and everything else that lives as long as the server.

    Attributes:
        lookers: the threads that look into the records for requests about conversions.
        checkers: the threads that check what is asked for.
        pingers: the threads that ask whether the database answers.
        together: records the conversions that are asked for.
        names: of the roots, and which folders no client is told.
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
    pingers: CapacityLimiter
    browsers: CapacityLimiter
    together: Together
    names: RootNames


@contextmanager
def open_services(settings: Settings, drain: Drain, metrics: Metrics) -> Iterator[Services]:
    """Everything opened, and closed again in the opposite order.

    Raises ReshardError where something cannot be opened.
    """
    check_arguments()  # loads what checking takes, so that the first request need not wait
    tokens, roots = load_tokens(settings), Roots(settings.roots)
    with ExitStack() as opened:
        opened.enter_context(state_locked(settings))
        database = open_database(settings)
        opened.callback(database.dispose)
        if database.dialect.name == "postgresql":
            listener = Listener(database)
            listener.launch()
            opened.callback(listener.close)
        durable = Durable(settings, database, roots)
        durable.launch()
        opened.callback(durable.close)
        names = RootNames.of(settings.roots, settings.state, Path(__file__).parent)
        questions = Questions(names, drain, _places(settings, "looks"), _places(settings, "reads"))
        opened.callback(questions.close)
        scheduling = Scheduling(
            settings, database, tokens, roots, durable.executor, durable.enqueue
        )
        ticking = Ticking(scheduling)
        ticking.launch()
        opened.callback(ticking.close)
        streams = Streams(_places(settings, "streams"))
        metrics.watch(database, streams)
        lookers = CapacityLimiter(LOOKERS)
        sessions = Sessions(database, tokens, settings.session_hours * 3600, clock_of(database).now)
        reloading = Reloading(settings, tokens, sessions.end_of_hash, _tell_tokens)
        reloading.launch()
        opened.callback(reloading.close)
        yield Services(
            settings,
            database,
            tokens,
            sessions,
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
            CapacityLimiter(PINGERS),
            CapacityLimiter(BROWSERS),
            Together(database, settings.queued_per_token, lookers),
            names,
        )


def _tell_tokens(words: str) -> None:
    audit("tokens", caller=None, detail=words)


def _places(settings: Settings, kind: Literal["looks", "reads", "streams"]) -> Places:
    """The places of a kind; where no token is needed, everybody is one token, which may take all."""
    most: int = getattr(settings, kind)
    return Places(most, most if settings.insecure else getattr(settings, f"{kind}_per_token"))
