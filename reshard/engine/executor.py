"""Gives tasks to an executor within a byte budget; the first error stops everything. Processes: an executor of own processes.

Each process is a fresh interpreter that imports this project and nothing of the caller's. ``multiprocessing`` would
import the caller's ``__main__`` and so run a script that has no ``if __name__ == "__main__"`` again, or fork a program
that has threads. A thread of this process sends its work to one thread of a process, and waits for the answer.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from reshard.errors import ReshardError

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection


T = TypeVar("T")
R = TypeVar("R")


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
    running: _Running[R] = _Running()
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
            running.add(submitted(executor, work, task), nbytes)
        while running.count:
            yield running.next_result()


class _Running(Generic[R]):
    """The submitted tasks, and the bytes that they need."""

    def __init__(self) -> None:
        self.nbytes = 0
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
        with executor_errors():
            return future.result()

    def stop(self) -> None:
        """Cancels tasks that have not begun, and waits for running ones."""
        for future in self._needs:
            future.cancel()
        for future in self._needs:
            with suppress(CancelledError):
                future.exception()


def submitted(executor: Executor, work: Callable[[T], R], task: T) -> Future[R]:
    """Gives a task to an executor; ReshardError if it takes none any more."""
    with executor_errors():
        try:
            return executor.submit(work, task)
        except RuntimeError as error:  # an executor that was shut down refuses by this error
            raise BrokenExecutor(str(error)) from error


@contextmanager
def executor_errors() -> Iterator[None]:
    """Maps failures of the executor and of memory to errors of this project."""
    try:
        yield
    except (BrokenExecutor, CancelledError) as error:
        raise ReshardError(
            f"the executor ended before its tasks did ({error or type(error).__name__}); a worker may have been "
            "killed, perhaps for its memory: allow less (max_memory, workers), and run again"
        ) from error
    except MemoryError as error:
        raise ReshardError(
            f"the system refused memory to a task ({error or 'no reason given'}); allow less (max_memory, "
            "workers), and run again"
        ) from error


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


LOOK_SECONDS = 1.0
"""Seconds between checks of the parent: a process that it forked may hold our stdin open after the parent has ended."""

START_SECONDS = 60
"""The longest time that processes may take to start; usually it is a quarter of a second."""

ENDING_SECONDS = 30
"""The longest time that a process may take to end once its connection has closed; it is a moment, but on a busy machine."""

_MAIN = (
    "import sys; sys.path[:] = sys.argv[3:]; from reshard.engine.executor import serve; "
    "serve(int(sys.argv[1]), [int(n) for n in sys.argv[2].split(',')])"
)


class Processes(Executor):
    """Runs ``workers`` tasks at once in ``processes`` processes. ``started`` makes it; ``shutdown`` ends them."""

    def __init__(self, workers: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[_Channel] = []
        self._idle: SimpleQueue[_Channel] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, "reshard")

    @classmethod
    def started(cls, processes: int, workers: int) -> Processes | None:
        """Processes that are ready; None if this program or system cannot start interpreters."""
        if not (
            not getattr(sys, "frozen", False)
            and Path(sys.executable or "").name.startswith("python")
        ):
            return None
        found = cls(workers)
        is_ready = False
        try:
            for number in range(processes):
                found._start(len(range(number, workers, processes)))
            is_ready = all(channel.is_ready() for channel in found._channels)
        except OSError:
            return None
        finally:
            if not is_ready:
                found.shutdown()
        return found if is_ready else None

    def _start(self, threads: int) -> None:
        from multiprocessing import Pipe

        pipes = [Pipe() for _ in range(threads)]
        try:
            theirs = [their.fileno() for _, their in pipes]
            process = _started(theirs)
            self._processes.append(process)
        finally:
            for _, their in pipes:
                their.close()
        for ours, _ in pipes:
            channel = _Channel(ours, process)
            self._channels.append(channel)
            self._idle.put(channel)

    def submit(self, work: Callable[..., R], /, *arguments: Any) -> Future[R]:  # type: ignore[override] # no keywords
        """Gives ``work(*arguments)`` to the next idle worker; all of it must be picklable."""
        return self._threads.submit(self._run, work, arguments)

    def _run(self, work: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        channel = self._idle.get()
        try:
            return channel.run(work, arguments)
        finally:
            self._idle.put(channel)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes at once. A task that still runs there raises BrokenExecutor."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for channel in self._channels:
            channel.close()


class _Channel:
    """This end of the connection to one thread of a process."""

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        self._connection = connection
        self._process = process
        self._work: Callable[..., Any] | None = None

    def is_ready(self) -> bool:
        """Waits until the process is ready; False if it ended or takes too long."""
        try:
            return self._connection.poll(START_SECONDS) and self._connection.recv() is None
        except (EOFError, OSError):
            return False

    def run(self, work: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        """The result or the error of ``work(*arguments)`` there; ``work`` is sent only if it differs from the one before.

        Raises BrokenExecutor if the process has ended.
        """
        try:
            self._connection.send((None if work is self._work else work, arguments))
            self._work = work
            result, error = self._connection.recv()
        except (EOFError, OSError) as error:
            raise BrokenExecutor(f"process {self._process.pid} {self._end()}") from error
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # it was pickled

    def _end(self) -> str:
        import subprocess

        try:
            code = self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def close(self) -> None:
        self._connection.close()


@contextmanager
def own_processes(processes: int, workers: int) -> Iterator[Processes | None]:
    """Processes for the block; None if none are wanted or none can be started."""
    found = Processes.started(processes, workers) if processes else None
    try:
        yield found
    finally:
        if found is not None:
            found.shutdown()


def _started(descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """A process that works for these connections until its stdin closes: when we close it, or end in any way.

    Ctrl-C at a terminal, and the SIGTERM that ends a service, reach a whole group of processes. This process
    handles them; the new one has them blocked from its first moment.
    """
    import subprocess

    words = [str(os.getpid()), ",".join(map(str, descriptors)), *sys.path]
    ours = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _MAIN, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)


def serve(parent: int, descriptors: Sequence[int]) -> NoReturn:
    """The main function of a process of ``Processes``: a thread for each connection carries out the tasks that arrive there.

    The main thread ends the process when its stdin closes, or when the process that started it is gone.
    """
    from multiprocessing.connection import Connection

    for descriptor in descriptors:
        Thread(target=_answer_all, args=(Connection(descriptor),), daemon=True).start()
    while os.getppid() == parent and not select.select([0], [], [], LOOK_SECONDS)[0]:
        pass
    os._exit(0)


def _answer_all(connection: Connection) -> None:
    """Answers each message, ``(work, arguments)``, with ``(result, error)``; ``work`` None repeats the work of the message before."""
    work: Callable[..., Any] = _nothing
    connection.send(None)  # ready
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        try:
            given, arguments = pickle.loads(message)  # noqa: S301 - of the process that started this one
            work = given or work
            answer = pickle.dumps((work(*arguments), None))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            answer = pickle.dumps((None, _with_traceback(error)))
        connection.send_bytes(answer)


def _nothing() -> None:
    """The initial work, before the first message."""


def _with_traceback(error: BaseException) -> BaseException:
    """The error with its traceback as a note: a traceback is not pickled, and it locates a defect."""
    if not isinstance(error, ReshardError):
        error.add_note(f"in another process:\n{traceback.format_exc()}")
    return error
