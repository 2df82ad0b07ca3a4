"""Questions about checkpoints: each is answered by a child process, so many at once as there are places.

Some look at metadata and take a second; others read every byte, and have places of their own so that they
hold up none of the first. A child ends when nobody waits for its answer any more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

from reshard_server.auth.slots_per_token import Places, too_many
from reshard_server.drain import Drain
from reshard_server.errors.problems import UNAVAILABLE, WORKER_DIED, ProblemError, kind_of
from reshard_server.jobs.attempt import how_ended
from reshard_server.worker.process import ChildProcess, start_child
from reshard_server.worker.wording import RootNames

LOG = logging.getLogger(__name__)

Effort = Literal["look", "read"]

PLACE_SECONDS = 5.0
"""How long a question waits for a place before it is refused."""

LOOK_SECONDS = 120.0
"""After which a look at metadata is given up: the storage hangs, or there is absurdly much of it."""

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""

TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        command: the command that would answer it.
        arguments: of the library's function, with real paths.
        effort: which kind of place it takes.
        told: members of the answer in the client's words.
        paths: those that the client named; of the roots only theirs are told.
    """

    command: str
    arguments: dict[str, Any]
    data_bytes: int
    effort: Effort = "look"
    told: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """What the child gets."""
        return {
            "question": self.command,
            "arguments": self.arguments,
            "data_bytes": self.data_bytes,
            **({"niceness": 0} if self.effort == "look" else {}),  # somebody waits for it
        }


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far it is, as JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, as JSON."""

    text: str


Heard = Progressed | Answered | None
"""None: nothing new, but it goes on."""


class Questions:
    """Answers questions in this process's children; used from its event loop."""

    def __init__(self, names: RootNames, drain: Drain, looks: Places, reads: Places) -> None:
        self._names, self._drain = names, drain
        self._places = {"look": looks, "read": reads}
        most = looks.at_most + reads.at_most
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="question")
        self._asked: set[_Asked] = set()

    def close(self) -> None:
        """Ends every child."""
        for asked in list(self._asked):
            asked.stop.set()
        self._threads.shutdown()

    async def ask(self, question: Question, token: str) -> AsyncGenerator[Heard, None]:
        """What the child says, and None a few times a second meanwhile; the last is the answer.

        Closing this iterator ends the child. Raises ProblemError where the library refuses, there is no
        place, or the child dies.
        """
        async with self._place(question.effort, token):
            asked = _Asked(question, self._names, asyncio.get_running_loop())
            self._asked.add(asked)
            thread = copy_context().run
            ending = asyncio.get_running_loop().run_in_executor(self._threads, thread, asked.run)
            ending.add_done_callback(_look_at)
            try:
                async for heard in self._heard(asked, ending):
                    yield heard
            finally:
                asked.stop.set()
                self._asked.discard(asked)

    @asynccontextmanager
    async def _place(self, effort: Effort, token: str) -> AsyncIterator[None]:
        places = self._places[effort]
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                await places.take(token)
        except TimeoutError:
            what = "questions of this kind are being answered"
            raise too_many(f"{effort}s", what, places, token, "ask again later", 10) from None
        try:
            yield
        finally:
            places.give_back(token)

    async def _heard(self, asked: _Asked, ending: asyncio.Future[Answered]) -> AsyncIterator[Heard]:
        deadline = time.monotonic() + LOOK_SECONDS
        while True:
            await asyncio.wait({ending}, timeout=TICK_SECONDS)
            while not asked.news.empty():
                yield asked.news.get_nowait()
            if ending.done():
                yield ending.result()
                return
            if asked.question.effort == "read" and self._drain.begun.is_set():
                self._drain.refuse_new()
            if asked.question.effort == "look" and time.monotonic() > deadline:
                raise _too_long()
            yield None


def _look_at(ending: asyncio.Future[Answered]) -> None:
    """What became of a question that nobody waits for is no news."""
    if not ending.cancelled():
        ending.exception()


class _Asked:
    """One question from its start to its end; ``run`` is a thread's work."""

    def __init__(
        self, question: Question, names: RootNames, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.question, self.names, self.loop = question, names.only(*question.paths), loop
        self.stop = threading.Event()
        self.news: asyncio.Queue[Progressed] = asyncio.Queue()

    def run(self) -> Answered:
        if self.stop.is_set():
            raise _stopped()
        child = start_child(self.question.document())
        try:
            found = self._listen(child)
        finally:
            code = child.close()
        if found is not None:
            return found
        if self.stop.is_set():
            raise _stopped()
        LOG.error("the process of a question %s: %s", how_ended(code), child.said())
        raise ProblemError(
            WORKER_DIED,
            f"the process that was to answer {how_ended(code)}; ask again, with a smaller max_memory where the machine "
            "ran out of memory",
        )

    def _listen(self, child: ChildProcess) -> Answered | None:
        while not child.ended and not self.stop.is_set():
            for message in child.messages(TICK_SECONDS):
                if "progress" in message:
                    self._tell(Progressed(json.dumps(message["progress"])))
                else:
                    return self._answered(message)
        if self.stop.is_set() and not child.ended:
            child.terminate()
            for _ in child.listen_until(time.monotonic() + GRACE_SECONDS):
                pass
        return None

    def _tell(self, news: Progressed) -> None:
        self.loop.call_soon_threadsafe(self.news.put_nowait, news)

    def _answered(self, message: dict[str, Any]) -> Answered:
        if "problem" in message:
            raise _problem(self.names.problem(message["problem"]))
        answer = {**self.names.answer(message["result"]), **self.question.told}
        return Answered(json.dumps(answer))


_MEMBERS = ("type", "title", "status", "detail", "field", "remedy", "instance")


def _problem(document: dict[str, Any]) -> ProblemError:
    extra = {k: v for k, v in document.items() if k not in _MEMBERS}
    return ProblemError(
        kind_of(document["type"]),
        document["detail"],
        document.get("field"),
        document.get("remedy"),
        extra,
    )


def _stopped() -> ProblemError:
    return ProblemError(
        UNAVAILABLE,
        "the question was given up before it was answered; ask again",
        headers={"Retry-After": "5"},
    )


def _too_long() -> ProblemError:
    return ProblemError(
        UNAVAILABLE,
        f"there was no answer within {LOOK_SECONDS:.0f} seconds, so the storage hangs, or the checkpoint's metadata is "
        "very large; check the storage",
        headers={"Retry-After": "60"},
    )
