"""Notifications: a writer reports a change of the records, and waiting readers look at once.

With SQLite a notification goes to the threads of this process after the transaction has committed. With PostgreSQL it
is a NOTIFY of the transaction, which reaches every replica that listens (``listen``), including this one. It is only a
hint: waiters also poll, rarely while notifications arrive reliably.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, cast, get_args

import sqlalchemy as sa

Topic = Literal["conversions", "schedules"]
"""conversions: one was queued or has ended. schedules: one was stored or resumed."""

TOPICS: tuple[Topic, ...] = get_args(Topic)

CHANNEL = "reshard"
"""PostgreSQL's channel of the notifications."""

LOOK_SECONDS = 1.0
"""Between two polls while notifications are not reliable."""

SELDOM_SECONDS = 15.0
"""Between two polls while notifications arrive."""

_OPTION = "records_news"
_PENDING = "news_of_transaction"


class News:
    """Calls waiters when there is news.

    Attributes:
        is_reliable: True if notifications of all processes arrive; otherwise waiters poll often.
    """

    def __init__(self) -> None:
        self.is_reliable = False
        self._waiting: list[tuple[Topic, Callable[[], None]]] = []

    @property
    def look_seconds(self) -> float:
        """Seconds between two polls."""
        return SELDOM_SECONDS if self.is_reliable else LOOK_SECONDS

    def wake(self, topic: Topic, call: Callable[[], None]) -> None:
        """Registers a function to call, from any thread, on each notification of a topic; it must be quick."""
        self._waiting.append((topic, call))

    def spread(self, topics: Iterable[str]) -> None:
        """Calls every waiter for one of the topics."""
        changed = set(topics)
        for topic, call in list(self._waiting):
            if topic in changed:
                call()


def give_news(db: sa.Engine) -> News:
    """Attaches news to an engine and its connections; ``news_of`` returns them."""
    news = News()
    db.update_execution_options(**{_OPTION: news})
    return news


def news_of(db: sa.Engine | sa.Connection) -> News:
    """The news of these records."""
    return cast("News", db.get_execution_options()[_OPTION])


def notify(connection: sa.Connection, topic: Topic) -> None:
    """Reports a change within a transaction; waiters are called once it has committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY, {"topic": topic})
    else:
        connection.info.setdefault(_PENDING, set()).add(topic)


_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, sa.bindparam("topic", type_=sa.Text)))


def withdrawn(connection: sa.Connection) -> set[str]:
    """Takes the pending notifications of a transaction on SQLite; the caller spreads or drops them."""
    return cast("set[str]", connection.info.pop(_PENDING, set()))
