"""Answers questions about checkpoints in child processes, as many at once as there are slots.

Some questions read metadata and take a second. Others read every byte; they have slots of their own, so that they do not
delay the first kind. A child is ended when its client no longer waits.
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

from reshard_server.auth.limits import Drain, Slots, too_many
from reshard_server.errors.problems import UNAVAILABLE, WORKER_DIED, ProblemError, kind_of
from reshard_server.worker.children import ChildProcess, Children, how_ended
from reshard_server.worker.wording import RootNames

LOG = logging.getLogger(__name__)

Effort = Literal["look", "read"]

SLOT_SECONDS = 5.0
"""Seconds that a question waits for a slot before it is refused."""

LOOK_SECONDS = 120.0
"""Time limit for reading metadata: beyond it the storage hangs, or the metadata is absurdly large."""

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""

TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Question:
    """A question for a child.

    Attributes:
        command: the command of ``reshard`` that gives the same answer.
        arguments: of the library's function, with real paths.
        data_bytes: address space that the kernel allows the child.
        effort: the kind of slot that it takes: ``look`` for metadata, ``read`` for every byte.
        overrides: members of the answer that replace the child's, such as the client's own paths.
        paths: the paths that the client named; the answer names only their roots.
    """

    command: str
    arguments: dict[str, Any]
    data_bytes: int
    effort: Effort = "look"
    overrides: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The document that the child reads."""
        return {
            "question": self.command,
            "arguments": self.arguments,
            "data_bytes": self.data_bytes,
            **({"niceness": 0} if self.effort == "look" else {}),  # a client waits for it
        }


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress, as JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, as JSON."""

    text: str


Update = Progressed | Answered | None
"""None: the child is still working, without news."""


class Questions:
    """Answers questions by children of this process; used from its event loop."""

    def __init__(
        self, names: RootNames, drain: Drain, looks: Slots, reads: Slots, children: Children
    ) -> None:
        self._names, self._drain, self._children = names, drain, children
        self._slots = {"look": looks, "read": reads}
        most = looks.at_most + reads.at_most
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="question")
        self._running: set[_RunningQuestion] = set()

    def close(self) -> None:
        """Ends every child."""
        for running in list(self._running):
            running.stop.set()
        self._threads.shutdown()

    async def ask(self, question: Question, token: str) -> AsyncGenerator[Update, None]:
        """The child's progress, None a few times a second without news, and last the answer.

        Closing this iterator ends the child. Raises ProblemError if the library refuses, no slot is free, or the
        child dies.
        """
        async with self._place(question.effort, token):
            yield None  # no process for a client that left while it waited
            loop = asyncio.get_running_loop()
            running = _RunningQuestion(question, self._names, loop, self._children)
            self._running.add(running)
            ending = loop.run_in_executor(self._threads, copy_context().run, running.run)
            ending.add_done_callback(_retrieve_error)
            try:
                async for update in self._updates(running, ending):
                    yield update
            finally:
                running.stop.set()
                self._running.discard(running)

    @asynccontextmanager
    async def _place(self, effort: Effort, token: str) -> AsyncIterator[None]:
        slots = self._slots[effort]
        try:
            async with asyncio.timeout(SLOT_SECONDS):
                await slots.take(token)
        except TimeoutError:
            what = "questions of this kind are being answered"
            raise too_many(f"{effort}s", what, slots, token, "ask again later", 10) from None
        try:
            yield
        finally:
            slots.give_back(token)

    async def _updates(
        self, running: _RunningQuestion, ending: asyncio.Future[Answered]
    ) -> AsyncIterator[Update]:
        deadline = time.monotonic() + LOOK_SECONDS
        while True:
            await asyncio.wait({ending}, timeout=TICK_SECONDS)
            while not running.news.empty():
                yield running.news.get_nowait()
            if ending.done():
                yield ending.result()
                return
            if running.question.effort == "read" and self._drain.started.is_set():
                self._drain.refuse_new()
            if running.question.effort == "look" and time.monotonic() > deadline:
                raise _not_now(
                    f"there was no answer within {LOOK_SECONDS:.0f} seconds: the storage hangs, or the checkpoint's metadata is "
                    "very large; check the storage",
                    60,
                )
            yield None


def _retrieve_error(ending: asyncio.Future[Answered]) -> None:
    """Marks the error of an abandoned question as seen, so that asyncio does not log it."""
    if not ending.cancelled():
        ending.exception()


class _RunningQuestion:
    """One question from its start to its end; a thread calls ``run``."""

    def __init__(
        self,
        question: Question,
        names: RootNames,
        loop: asyncio.AbstractEventLoop,
        children: Children,
    ) -> None:
        self.question, self.names, self.loop = question, names.only(*question.paths), loop
        self.children = children
        self.stop = threading.Event()
        self.news: asyncio.Queue[Progressed] = asyncio.Queue()

    def run(self) -> Answered:
        if self.stop.is_set():
            raise _not_now(_STOPPED, 5)
        try:
            child = self.children.start(self.question.document())
        except OSError as error:  # no more processes or descriptors
            LOG.error("no process could be started for a question: %s", error)
            raise _not_now(
                "no process could be started for this question; ask again later, and see the server's log",
                5,
            ) from error
        try:
            answer = self._listen(child)
        finally:
            code = child.close()
        if answer is not None:
            return answer
        if self.stop.is_set():
            raise _not_now(_STOPPED, 5)
        LOG.error("the process of a question %s: %s", how_ended(code), child.error_output())
        raise ProblemError(
            WORKER_DIED,
            f"the process of this question {how_ended(code)}; ask again, with a smaller max_memory if the machine "
            "ran out of memory",
        )

    def _listen(self, child: ChildProcess) -> Answered | None:
        while not child.ended and not self.stop.is_set():
            for message in child.messages(TICK_SECONDS):
                if "progress" in message:
                    news = Progressed(json.dumps(message["progress"]))
                    self.loop.call_soon_threadsafe(self.news.put_nowait, news)
                else:
                    return self._answered(message)
        if self.stop.is_set() and not child.ended:
            child.terminate()
            for _ in child.listen_until(time.monotonic() + GRACE_SECONDS):
                pass
        return None

    def _answered(self, message: dict[str, Any]) -> Answered:
        if "problem" in message:
            if "log" in message:
                LOG.warning("%s", message["log"])
            raise _problem(self.names.problem(message["problem"]))
        answer = {**self.names.answer(message["result"]), **self.question.overrides}
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


_STOPPED = "the question was cancelled before it was answered; ask again"


def _not_now(detail: str, seconds: int) -> ProblemError:
    return ProblemError(UNAVAILABLE, detail, headers={"Retry-After": str(seconds)})
