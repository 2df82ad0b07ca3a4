"""What runs on a host of a cluster: batches in threads that share a pool of buffers; errors travel as values."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from reshard.engine.batch import Work
from reshard.engine.buffers import ArenaPool
from reshard.errors import ReshardError


class Answer(Struct, frozen=True):
    """The value of a call on another host, or its error."""

    value: Any = None
    error: BaseException | None = None


class BatchActor:
    """Carries out batches with ``threads`` at once, whose buffers together stay within ``max_memory`` bytes."""

    def __init__(self, max_memory: int, threads: int) -> None:
        self._pool = ArenaPool(max_memory, threads)

    def ready(self) -> Answer:
        """Answers as soon as the host has given what was asked."""
        return Answer()

    def run(self, work: Callable[..., Any], *arguments: Any) -> Answer:
        """``work(*arguments)``, with this actor's buffers if it is the work of a run."""
        if isinstance(work, Work):
            work = work.with_pool(self._pool)
        return answered(work, *arguments)


def answered(work: Callable[..., Any], *arguments: Any) -> Answer:
    """The result or the error of ``work(*arguments)``."""
    try:
        return Answer(work(*arguments))
    except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
        return Answer(None, _travelling(error))


def _travelling(error: BaseException) -> BaseException:
    """The error as it can be pickled. A traceback does not travel, and tells where a defect is."""
    if not isinstance(error, ReshardError):
        error.add_note(f"on another host:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of this very process
    except Exception:  # noqa: BLE001 - whatever an error of others does
        return ReshardError(f"{type(error).__name__}: {error}; a task failed on another host")
    return error
