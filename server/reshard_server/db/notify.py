"""Notifications: a writer says that records changed, and waiting readers look at once.

With SQLite the news goes to the threads of this process when the transaction has committed. With PostgreSQL it is a
NOTIFY of the transaction, which reaches every replica that listens (``listen``), this one too. It is a hint: who
waits also looks from time to time by itself, rarely where it can rely on being told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, cast, get_args

import sqlalchemy as sa

Topic = Literal["conversions", "schedules"]
"""conversions: one is queued, or has ended. schedules: one was stored, or goes on."""

TOPICS: tuple[Topic, ...] = get_args(Topic)

CHANNEL = "reshard"
"""Of PostgreSQL's notifications."""

LOOK_SECONDS = 1.0
"""Between two looks where no notification can be relied on."""

SELDOM_SECONDS = 15.0
"""Between two looks where notifications arrive."""

_OPTION = "records_news"
_TOLD = "news_of_transaction"


class News:
    """Who is to be told of what.

    Attributes:
        is_reliable: whether changes by any process are told; else they are looked for.
    """

    def __init__(self) -> None:
        self.is_reliable = False
        self._waiting: list[tuple[Topic, Callable[[], None]]] = []

    @property
    def look_seconds(self) -> float:
        """After which to look, whatever was told."""
        return SELDOM_SECONDS if self.is_reliable else LOOK_SECONDS

    def wake(self, topic: Topic, call: Callable[[], None]) -> None:
        """Has something called, from any thread, where there is news; it must be quick."""
        self._waiting.append((topic, call))

    def spread(self, topics: Iterable[str]) -> None:
        """Tells everybody who waits."""
        found = set(topics)
        for topic, call in list(self._waiting):
            if topic in found:
                call()


def give_news(db: sa.Engine) -> News:
    """Gives an engine, and every connection of it, the news that ``news_of`` finds."""
    news = News()
    db.update_execution_options(**{_OPTION: news})
    return news


def news_of(db: sa.Engine | sa.Connection) -> News:
    """The news of these records."""
    return cast("News", db.get_execution_options()[_OPTION])


def tell(connection: sa.Connection, topic: Topic) -> None:
    """Says within a transaction that it changes something; it is told once that has committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY, {"topic": topic})
    else:
        connection.info.setdefault(_TOLD, set()).add(topic)


_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, sa.bindparam("topic", type_=sa.Text)))


def taken_back(connection: sa.Connection) -> set[str]:
    """What a transaction on SQLite said, which is told no more unless somebody spreads it."""
    return cast("set[str]", connection.info.pop(_TOLD, set()))
