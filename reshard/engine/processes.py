"""Processes: an executor that runs tasks in processes of its own, several in each.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from reshard.errors import ReshardError

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection

R = TypeVar("R")

LOOK_SECONDS = 1.0
"""Seconds between checks of the parent: a process that it forked may hold our stdin open after the parent has ended."""

START_SECONDS = 60
"""The longest time that processes may take to start; usually it is a quarter of a second."""

ENDING_SECONDS = 30
"""The longest time that a process may take to end once its connection has closed; it is a moment, but on a busy machine."""

_MAIN = (
    "import sys; sys.path[:] = sys.argv[3:]; from reshard.engine.processes import serve; "
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
        if not _has_interpreter():
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


def _has_interpreter() -> bool:
    """True if ``sys.executable`` is Python: a program that embeds or freezes it may name itself there."""
    return not getattr(sys, "frozen", False) and Path(sys.executable or "").name.startswith(
        "python"
    )


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
