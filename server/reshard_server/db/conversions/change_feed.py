"""Changes of conversions as they happen, for any number of watchers, by one query at a time.

The query reads the revisions of all watched conversions, changed by this process or by another replica. A
watcher sees the newest state, not every state in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import sqlalchemy as sa

from reshard_server.db.conversions.conversions import get_many, revisions
from reshard_server.schemas.conversion import Conversion

LOG = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.25
INTERVAL_AFTER_FAILURE_SECONDS = 2.0


@dataclass(eq=False)
class Watcher:
    """Waits for changes of a conversion after a revision.

    Attributes:
        newest: the last state that was read; None if the conversion was deleted.
        wake: set on each change.
    """

    conversion: str
    revision: int
    newest: Conversion | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Feed:
    """The watchers, and the task that polls for them while there are any."""

    db: sa.Engine
    watchers: set[Watcher] = field(default_factory=set)
    task: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, conversion: str, revision: int) -> Iterator[Watcher]:
        """A watcher of the changes after this revision."""
        watcher = Watcher(conversion, revision)
        self.watchers.add(watcher)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._poll())
        try:
            yield watcher
        finally:
            self.watchers.discard(watcher)

    async def _poll(self) -> None:
        while self.watchers:
            try:
                await self._wake_changed()
                await asyncio.sleep(INTERVAL_SECONDS)
            except sa.exc.SQLAlchemyError as error:
                LOG.warning("cannot read the records for streams of events: %s", error)
                await asyncio.sleep(INTERVAL_AFTER_FAILURE_SECONDS)

    async def _wake_changed(self) -> None:
        watched = {w.conversion for w in self.watchers}
        now = await asyncio.to_thread(revisions, self.db, watched)
        behind = [w for w in self.watchers if now.get(w.conversion) != w.revision]
        if not behind:
            return
        conversions = await asyncio.to_thread(get_many, self.db, {w.conversion for w in behind})
        for watcher in behind:
            watcher.newest = conversions.get(watcher.conversion)
            watcher.revision = watcher.newest.revision if watcher.newest else -1
            watcher.wake.set()
