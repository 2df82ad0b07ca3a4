"""Makes many calls to a store: several at once where requests take long, one after the other on a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

from reshard.storage.base import Store

REQUESTS_AT_ONCE = 32
"""At 30 ms these make a thousand requests a second, which is what a new bucket of Google Cloud takes."""

_AHEAD = 4 * REQUESTS_AT_ONCE
"""Results that wait for the caller at most."""

T = TypeVar("T")
R = TypeVar("R")


def each_at_once(store: Store, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The function's result for each item, in order, as ``map`` gives them."""
    if not store.traits.by_requests:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "reshard.metadata") as threads:
        try:
            for item in items:
                waiting.append(_begun(threads, function, item))
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _begun(threads: Executor, function: Callable[[T], R], item: T) -> Future[R]:
    """The call as it was handed to a thread; made here where the interpreter exits, or the system allows no more threads."""
    try:
        return threads.submit(function, item)
    except RuntimeError:
        done: Future[R] = Future()
        done.set_result(function(item))
        return done
