"""Calls of a storage that may hang, in threads of their own: whoever asked waits for a limited time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

SLOT_SECONDS = 2.0
"""How long a call waits for a thread."""


class TimedCalls:
    """Runs calls of one storage.

    A call that hangs keeps its thread until the storage's client gives up. When all threads hang, later calls give up
    soon, so that a storage that hangs holds up nobody else.
    """

    def __init__(self, at_most: int) -> None:
        self._slots = threading.Semaphore(at_most)

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """What the call returns or raises. Raises TimeoutError if that takes longer; the call then ends unheard."""
        deadline = time.monotonic() + seconds
        if not self._slots.acquire(timeout=min(seconds, SLOT_SECONDS)):
            raise TimeoutError
        answer: Future[T] = Future()
        # A daemon: a storage that hangs must not keep a server from ending.
        thread = threading.Thread(
            target=copy_context().run, args=(self._answer, call, answer), daemon=True
        )
        thread.start()
        wait([answer], deadline - time.monotonic())
        if not answer.done():
            raise TimeoutError
        return answer.result()

    def _answer(self, call: Callable[[], T], answer: Future[T]) -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  it is raised where the answer is awaited
            answer.set_exception(error)
        finally:
            self._slots.release()
