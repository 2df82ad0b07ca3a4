"""Gives tasks to an executor within a byte budget; the first error stops everything."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
)
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from threading import Condition
from typing import Generic, TypeVar

from reshard.engine.processes import Processes
from reshard.errors import ReshardError

T = TypeVar("T")
R = TypeVar("R")


class HostsExecutor(Executor, ABC):
    """An executor on several hosts; each host has the memory and the workers of a run.

    A run treats any other executor as one host: ``max_memory`` and ``workers`` are the totals of all its workers.
    """

    @property
    @abstractmethod
    def hosts(self) -> int:
        """The number of hosts that take tasks now."""

    @abstractmethod
    def open(self, max_memory: int, workers: int, processes: int) -> None:
        """Prepares for the batches of a run: ``workers`` at once on each host, with ``max_memory`` bytes together.

        ``processes`` share the workers of a host; 0 for one.

        Raises ReshardError, naming the host, if a host lacks them.
        """

    @abstractmethod
    def on_each_host(self, ask: Callable[[], T]) -> Mapping[str, T]:
        """The result of ``ask()`` on each host, by the host's name; called while this is open. Raises the first error."""

    @abstractmethod
    def close(self) -> None:
        """Ends the workers, and waits until no task can write."""


@contextmanager
def opened(
    executor: Executor | None, max_memory: int, workers: int, processes: int
) -> Iterator[None]:
    """Opens an executor on several hosts for the batches of a run in the block; any other one is always ready."""
    if not isinstance(executor, HostsExecutor):
        yield
        return
    try:
        executor.open(max_memory, workers, processes)
        yield
    finally:
        executor.close()


def is_own(executor: Executor | None) -> bool:
    """True if tasks run in threads of this process, or in child processes that end with it."""
    return executor is None or isinstance(executor, ThreadPoolExecutor | Processes)


def hosts_of(executor: Executor | None) -> int:
    """The number of hosts that run tasks, each with its own budget."""
    return executor.hosts if isinstance(executor, HostsExecutor) else 1


QUEUED_PER_WORKER = 2
"""Tasks submitted ahead, so that no worker waits for the one thread that submits them."""


def run_tasks(
    tasks: Iterable[T],
    work: Callable[[T], R],
    need: Callable[[T], int],
    max_bytes: int,
    workers: int,
    executor: Executor | None = None,
) -> Generator[R, None, None]:
    """``work(task)`` of every task, as they end; a task starts when the bytes that it needs (``need``) are free.

    A task that alone needs more than ``max_bytes`` runs when no other does. With ``executor`` None
    threads are made and ended here. At an error, or when the caller closes this, tasks that have
    not begun are cancelled, and running ones are waited for.

    Raises the error of a task, and ReshardError if the executor fails or memory runs out.
    """
    running: _Running[R] = _Running(may_fail=not is_own(executor))
    with ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(ThreadPoolExecutor(workers, "reshard"))
            begun = InFlight()
            stack.callback(begun.end)
            work = partial(begun.run, work)
        stack.callback(running.stop)
        most = workers * QUEUED_PER_WORKER
        for task in tasks:
            nbytes = need(task)
            while running.count and (running.count >= most or running.nbytes + nbytes > max_bytes):
                yield running.next_result()
            running.add(_submitted(executor, work, task), nbytes)
        while running.count:
            yield running.next_result()


class _Running(Generic[R]):
    """The submitted tasks, and the bytes that they need; ``may_fail``: the executor has errors of its own."""

    def __init__(self, *, may_fail: bool) -> None:
        self.nbytes = 0
        self._may_fail = may_fail
        self._needs: dict[Future[R], int] = {}
        self._ended: SimpleQueue[Future[R]] = SimpleQueue()

    @property
    def count(self) -> int:
        return len(self._needs)

    def add(self, future: Future[R], nbytes: int) -> None:
        self._needs[future] = nbytes
        self.nbytes += nbytes
        future.add_done_callback(self._ended.put)

    def next_result(self) -> R:
        """Waits for the task that ends first.

        It uses a queue: ``concurrent.futures.wait`` never returns for a task that its executor cancelled
        during shutdown.
        """
        future = self._ended.get()
        self.nbytes -= self._needs.pop(future)
        with _executor_errors(may_fail=self._may_fail):
            return future.result()

    def stop(self) -> None:
        """Cancels tasks that have not begun, and waits for running ones."""
        for future in self._needs:
            future.cancel()
        for future in self._needs:
            with suppress(CancelledError):
                future.exception()


def _submitted(executor: Executor, work: Callable[[T], R], task: T) -> Future[R]:
    with _executor_errors():
        try:
            return executor.submit(work, task)
        except RuntimeError as error:  # an executor that was shut down refuses by this error
            raise BrokenExecutor(str(error)) from error


@contextmanager
def _executor_errors(*, may_fail: bool = False) -> Iterator[None]:
    """Maps failures of the executor and of memory to errors of this project."""
    try:
        yield
    except (BrokenExecutor, CancelledError) as error:
        raise ReshardError(
            f"the executor ended before its tasks did ({error or type(error).__name__}); a worker may have been "
            "killed, perhaps for its memory: allow less (max_memory, workers), and run again"
        ) from error
    except ReshardError:
        raise
    except MemoryError as error:
        raise ReshardError(
            f"the system refused memory to a task ({error or 'no reason given'}); allow less (max_memory, "
            "workers), and run again"
        ) from error
    except Exception as error:
        if not may_fail or not _is_of_an_executor(error):
            raise
        raise ReshardError(
            f"the executor gave a task up ({type(error).__name__}: {error}); see its own logs, allow less (max_memory, workers), and run again"
        ) from error


def _is_of_an_executor(error: Exception) -> bool:
    """True if an error's class is neither this project's nor Python's: executors report trouble with workers by such errors."""
    package = type(error).__module__.partition(".")[0]
    return (
        package not in ("reshard", "tests", "__main__") and package not in sys.stdlib_module_names
    )


class InFlight:
    """Counts tasks while they run.

    Ctrl-C may reach ``ThreadPoolExecutor.submit`` after it has started a thread and before it has noted it.
    Its shutdown does not wait for such a thread, and nothing holds the future of its task.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._running = 0
        self._ended = False

    def run(self, work: Callable[[T], R], task: T) -> R:
        """``work(task)``; CancelledError once this has ended."""
        with self._changed:
            if self._ended:
                raise CancelledError
            self._running += 1
        try:
            return work(task)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Prevents further tasks, and waits for running ones."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._running)
