"""Child processes: forks of one process that has imported their modules (``worker.template``); nothing here knows of conversions."""

from __future__ import annotations

import json
import logging
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Any

LOG = logging.getLogger(__name__)

PRIVATE_PREFIX = "RESHARD_"
"""Settings in the environment may contain passwords; the child needs none of them but one."""

BUCKETS = "RESHARD_BUCKETS"
"""Names the file with the endpoints and credentials of buckets, which the library reads in the child."""

START_SECONDS = 60.0
"""Seconds that a child may take to start; the first waits until the template has imported everything."""

PAUSE_SECONDS = 1.0
"""Seconds before a template is started in place of one that has ended."""


class Children:
    """Starts children, from any thread, as forks of the template.

    A thread starts the template, and another one when it ends. That thread lives as long as the server: the kernel
    kills the template when the thread that started it ends. The template's end ends its children.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._control: socket.socket | None = None
        self._template: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None
        self._is_closed = False

    def launch(self) -> None:
        """Starts the template, so that the first child need not wait for it."""
        with self._changed:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="template", daemon=True)
                self._keeper.start()

    def close(self) -> None:
        """Ends the template, and with it any child that still runs."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if self._template is not None:
                self._template.kill()
        if self._keeper is not None:
            self._keeper.join()

    def start(self, document: Message) -> ChildProcess:
        """A child that gets this document, in a process group of its own. Raises OSError if none can be started.

        The child stays in the server's session: Linux may share the processor among sessions first (autogroups), and
        the child's niceness would then count only within its own session, not against the server's requests.
        """
        self.launch()
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                child = self._fork(deadline)
                break
            except EOFError:  # the template ended before it forked; the next one does it
                continue
        line = json.dumps({**document, "environment": _environment()}).encode() + b"\n"
        threading.Thread(target=child.feed, args=(line,), daemon=True).start()
        return child

    def _fork(self, deadline: float) -> ChildProcess:
        with ExitStack() as unless_started, ExitStack() as handed:
            ends, given = list[IO[bytes]](), list[int]()
            for mode in ("wb", "rb", "rb", "rb"):
                read, write = os.pipe()
                own, its = (write, read) if mode == "wb" else (read, write)
                handed.callback(os.close, its)
                ends.append(unless_started.enter_context(os.fdopen(own, mode)))
                given.append(its)
            self._hand_over(given, deadline)
            handed.close()  # so that the end of the child, or of the template, is seen
            stdin, stdout, stderr, news = ends
            pid = _pid_of(news, stderr, deadline)
            unless_started.pop_all()
        return ChildProcess(pid, stdin, stdout, stderr, news)

    def _hand_over(self, given: list[int], deadline: float) -> None:
        with self._changed:
            while True:
                left = max(0.0, deadline - time.monotonic())
                self._changed.wait_for(lambda: self._control or self._is_closed, left)
                if self._control is None or self._is_closed:
                    raise OSError("there is no process that could fork it; the log says why")
                try:
                    socket.send_fds(self._control, [b"+"], given)
                except ConnectionError:  # it has just ended, and its keeper does not know yet
                    self._forget_template()
                else:
                    return

    def _keep(self) -> None:
        """Starts a template as often as one ends."""
        while not self._is_closed:
            try:
                with self._changed:
                    template = self._start_template()
                _, errors = template.communicate()
                why = f"{how_ended(template.returncode)}: {errors[-STDERR_BYTES:].decode(errors='replace').strip()}"
            except OSError as error:
                why = f"could not be started: {error}"
            with self._changed:
                self._forget_template()
                if not self._is_closed:
                    LOG.error("the process that forks children %s; another one is started", why)
                    self._changed.wait_for(lambda: self._is_closed, PAUSE_SECONDS)

    def _forget_template(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None

    def _start_template(self) -> subprocess.Popen[bytes]:
        self._control, its = socket.socketpair()
        self._control.setblocking(False)  # a template that hangs must not block the server
        with its:
            self._template = subprocess.Popen(
                [sys.executable, "-P", "-m", "reshard_server.worker.template", str(os.getpid())],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,
                env={**_environment(), "OPENBLAS_NUM_THREADS": "1"},  # else numpy starts threads
            )
        self._changed.notify_all()
        if self._is_closed:
            self._template.kill()
        return self._template


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name == BUCKETS or not name.startswith(PRIVATE_PREFIX)
    }


def _pid_of(news: IO[bytes], stderr: IO[bytes], deadline: float) -> int:
    try:
        pid = read_number(news, max(0.0, deadline - time.monotonic()))
    except EOFError:
        if why := os.read(stderr.fileno(), STDERR_BYTES).decode(errors="replace"):
            raise OSError(why) from None
        raise
    if pid is None:
        raise OSError(f"the process that should fork it did not answer in {START_SECONDS:.0f} s")
    return pid


STDERR_BYTES = 8192
EXIT_SECONDS = 5.0
"""Seconds that a process may take to end after it was killed or has closed its output."""

MESSAGE_BYTES = 1 << 28
_READ_BYTES = 1 << 16

DESCRIPTORS = 4
"""Descriptors of each child: stdin, stdout, stderr, and the pipe on which the template sends its pid and then its exit code."""

NUMBER = struct.Struct("=i")
"""A pid or an exit code; the latter is negative for a signal."""

Message = dict[str, Any]


@dataclass
class ChildProcess:
    """A running child; ``Children.start`` makes it, ``close`` must end it.

    Attributes:
        news: the pipe on which the template sends the exit code. While it is open, ``pid`` names no other process.
        has_document: set once the child's document is written; nothing else is sent before.
    """

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    news: IO[bytes]
    has_document: threading.Event = field(default_factory=threading.Event)
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _open: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __post_init__(self) -> None:
        self._open.register(self.stdout, selectors.EVENT_READ, self._stdout)
        self._open.register(self.stderr, selectors.EVENT_READ, self._stderr)

    @property
    def ended(self) -> bool:
        """True if the child closed its output: it has ended, or is about to."""
        return not self._open.get_map()

    def messages(self, seconds: float) -> Iterator[Message]:
        """The messages that arrive within this time; returns as soon as there are any."""
        for key, _ in self._open.select(seconds):
            data = os.read(key.fd, _READ_BYTES)
            key.data.extend(data)
            if not data:
                self._open.unregister(key.fileobj)
        del self._stderr[:-STDERR_BYTES]
        yield from self._lines()

    def _lines(self) -> Iterator[Message]:
        if len(self._stdout) > MESSAGE_BYTES:
            raise ValueError(f"the child's message is longer than {MESSAGE_BYTES} bytes")
        while (end := self._stdout.find(b"\n")) >= 0:
            line = bytes(self._stdout[:end])
            del self._stdout[: end + 1]
            yield json.loads(line)

    def send(self, message: Message) -> None:
        """Sends a short message if the pipe has room: a child that hangs must not block the server."""
        if not self.has_document.is_set():
            return
        with suppress(OSError, ValueError):
            if _has_room(self.stdin.fileno()):
                os.write(self.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def feed(self, line: bytes) -> None:
        """Writes the document, in a thread of its own: it may be larger than the pipe, and the child may hang."""
        with suppress(OSError, ValueError):
            self.stdin.write(line)
            self.stdin.flush()
            self.has_document.set()

    def terminate(self) -> None:
        """Asks the child to end (SIGTERM)."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def close(self) -> int:
        """Ends the child and its own children at once; returns its exit code, negative for a signal.

        A process in a system call on a hanging storage cannot be ended now. It does nothing more and ends when
        the call returns; this method does not wait for it.
        """
        if not self.ended:
            self._kill()
        code = self._ended_within(EXIT_SECONDS)
        if code is None:
            self._kill()
            code = self._ended_within(EXIT_SECONDS)
        if code is None:
            LOG.warning("the process %d hangs in the kernel; it ends later", self.pid)
            code = -signal.SIGKILL
        self._open.close()
        for stream in (self.stdin, self.stdout, self.stderr, self.news):
            with suppress(OSError):  # the child never read all of its request
                stream.close()
        return code

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _ended_within(self, seconds: float) -> int | None:
        """The exit code; None if the child still runs. If the template has died, the kernel has killed the child."""
        try:
            return read_number(self.news, seconds)
        except EOFError:
            return -signal.SIGKILL

    def error_output(self) -> str:
        """The end of the child's output to stderr."""
        return self._stderr.decode(errors="replace").strip()

    def listen_until(self, deadline: float) -> Iterator[Message]:
        """The messages until the child ends, or until a time of ``time.monotonic``."""
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            yield from self.messages(left)


def read_number(news: IO[bytes], seconds: float) -> int | None:
    """The number that the template sends; None if that takes longer. Raises EOFError if it will send none."""
    told = select.poll()
    told.register(news, select.POLLIN)
    if not told.poll(seconds * 1000):
        return None
    data = os.read(news.fileno(), NUMBER.size)
    if not data:
        raise EOFError
    (number,) = NUMBER.unpack(data)
    return int(number)


def how_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _has_room(fd: int) -> bool:
    """True if a pipe takes PIPE_BUF bytes now; ``select`` takes no descriptors from 1,024 on."""
    room = select.poll()
    room.register(fd, select.POLLOUT)
    return bool(room.poll(0))
