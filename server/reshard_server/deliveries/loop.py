"""The loop that sends deliveries, in one thread of the server: claims what is due, and makes several tries at once.

A receiver that is slow keeps few places, and so does a token that names many of them. So the others never wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import sqlalchemy as sa

from reshard.errors import ReshardError
from reshard_server.db import deliveries
from reshard_server.db.clock import clock_of
from reshard_server.db.connections import news_of
from reshard_server.db.deliveries import Due, Tried
from reshard_server.deliveries.messages import body_of, read_secrets, signed_headers
from reshard_server.deliveries.post import post
from reshard_server.deliveries.receivers import receiver_of
from reshard_server.errors.problems import ProblemError
from reshard_server.settings import Settings

LOG = logging.getLogger(__name__)

AT_ONCE, OF_A_TOKEN, OF_A_HOST = 32, 16, 2
"""Tries at once: of this server, of one token, at one host. A try takes next to nothing but a socket and, at most, 10 s."""

AFTER_FAILURE_SECONDS = 2.0
"""Before the database is asked again."""


@dataclass
class DeliveryLoop:
    """Sends deliveries as long as the server runs.

    Attributes:
        secrets_file: read again at each try, so that secrets can be exchanged without a restart.
    """

    settings: Settings
    database: sa.Engine
    secrets_file: Path
    underway: set[Due] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: threading.Thread | None = None
    _ending: bool = False

    def launch(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="deliveries", daemon=True)
        self._thread.start()
        news_of(self.database).wake("deliveries", self._look)

    def close(self) -> None:
        """Ends the thread. Tries that it breaks off are made again once their claims have run out."""
        self._ending = True
        self._look()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._send_all())

    async def _send_all(self) -> None:
        trust = ssl.create_default_context()
        async with anyio.create_task_group() as tries:
            while not self._ending:
                self._wake.clear()
                try:
                    while due := await self._claimed():
                        self.underway.add(due)
                        tries.start_soon(self._deliver, due, trust)
                    pause = await asyncio.to_thread(self._pause)
                except (
                    sa.exc.SQLAlchemyError,
                    RuntimeError,
                ) as error:  # no thread is left, perhaps
                    LOG.warning("cannot look for deliveries: %s", error)
                    pause = AFTER_FAILURE_SECONDS
                with anyio.move_on_after(pause):
                    await self._wake.wait()
            tries.cancel_scope.cancel()

    async def _claimed(self) -> Due | None:
        """A delivery to try now; None if none is due, or its receiver has all its places."""
        if self._ending or len(self.underway) >= AT_ONCE:
            return None
        hosts = _full((due.host for due in self.underway), OF_A_HOST)
        tokens = _full((due.token for due in self.underway), OF_A_TOKEN)
        return await asyncio.to_thread(deliveries.claim_next, self.database, hosts, tokens)

    def _pause(self) -> float:
        """Seconds until a delivery is due, or until the next look without a notification."""
        due, longest = deliveries.next_due(self.database), news_of(self.database).look_seconds
        return longest if due is None else min(longest, due - clock_of(self.database).now())

    async def _deliver(self, due: Due, trust: ssl.SSLContext) -> None:
        try:
            tried = await self._try(due, trust)
            if tried is None:
                return
            state = await asyncio.to_thread(deliveries.judge, self.database, due, tried)
            # The URL may hold a secret of its receiver.
            about = {
                "conversion": due.conversion,
                "delivery": due.id,
                "host": due.host,
                "tries": due.tries,
            }
            LOG.info("notified", extra={**about, "state": state, "detail": tried.error})
        except (sa.exc.SQLAlchemyError, RuntimeError) as error:
            LOG.warning("cannot record a delivery, which is tried again: %s", error)
        finally:
            self.underway.discard(due)
            self._wake.set()

    async def _try(self, due: Due, trust: ssl.SSLContext) -> Tried | None:
        """The outcome of a try; None if the conversion was deleted."""
        try:
            body = await asyncio.to_thread(body_of, self.database, self.settings, due)
            if body is None:
                return None
            receiver = receiver_of(self.settings, due.url)
            headers = {"Content-Type": "application/cloudevents+json", "User-Agent": "reshard"}
            headers |= signed_headers(
                read_secrets(self.secrets_file), due.event, int(clock_of(self.database).now()), body
            )
            return await post(self.settings, receiver, headers, body, trust)
        except ProblemError as problem:
            return Tried(None, problem.detail)
        except ReshardError as error:
            LOG.error("cannot sign notifications: %s", error)
            return Tried(None, "this server cannot sign it now; its log says why")
        except (sa.exc.SQLAlchemyError, RuntimeError):
            raise
        except Exception:
            LOG.exception("unexpected")
            return Tried(
                None, "the server met an error that is its own; its log has the delivery's id"
            )


def _full(names: Iterable[str], most: int) -> list[str]:
    """The names that occur as often as they may."""
    return [name for name, number in Counter(names).items() if number >= most]
