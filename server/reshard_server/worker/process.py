"""A child process: reads its messages, ends it. Knows nothing of conversions."""

from __future__ import annotations

import json
import logging
import os
import select
import selectors
import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

LOG = logging.getLogger(__name__)

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
