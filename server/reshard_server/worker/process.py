"""A child process: starts it, reads its messages, ends it. Knows nothing of conversions."""

from __future__ import annotations

import json
import logging
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

LOG = logging.getLogger(__name__)

PRIVATE_PREFIX = "RESHARD_"
"""Settings in the environment may contain passwords; the child needs none of them but one."""

BUCKETS = "RESHARD_BUCKETS"
"""Names the file with the endpoints and credentials of buckets, which the library reads in the child."""

STDERR_BYTES = 8192
EXIT_SECONDS = 5.0
"""How long a process may take to end after it was killed or has closed its output."""

MESSAGE_BYTES = 1 << 28
_READ_BYTES = 1 << 16

Message = dict[str, Any]


@dataclass
class ChildProcess:
    """A running child; ``start_child`` makes it, ``close`` must end it.

    Attributes:
        has_document: set once the child's document is written; nothing else is sent before.
    """

    process: subprocess.Popen[bytes]
    has_document: threading.Event = field(default_factory=threading.Event)
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _open: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __post_init__(self) -> None:
        self._open.register(_stream(self.process.stdout), selectors.EVENT_READ, self._stdout)
        self._open.register(_stream(self.process.stderr), selectors.EVENT_READ, self._stderr)

    @property
    def ended(self) -> bool:
        """Whether the child closed its output: it has ended, or is about to."""
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
            stdin = _stream(self.process.stdin).fileno()
            if _has_room(stdin):
                os.write(stdin, json.dumps(message).encode() + b"\n")

    def terminate(self) -> None:
        """Asks the child to end (SIGTERM)."""
        self.process.terminate()

    def close(self) -> int:
        """Ends the child and its own children at once; returns its exit code, negative for a signal.

        A process in a system call on a hanging storage cannot be ended now. It does nothing more and ends when
        the call returns; this method does not wait for it.
        """
        if self.process.returncode is None and not self.ended:
            self._kill()
        code = self._ended_within(EXIT_SECONDS)
        if code is None:
            self._kill()
            code = self._ended_within(EXIT_SECONDS)
        if code is None:
            LOG.warning("the process %d hangs in the kernel; it ends later", self.process.pid)
            threading.Thread(target=self.process.wait, name="reaper", daemon=True).start()
            code = -signal.SIGKILL
        self._open.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(OSError):  # the child never read all of its request
                _stream(stream).close()
        return code

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _ended_within(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def error_output(self) -> str:
        """The end of what the child wrote to stderr."""
        return self._stderr.decode(errors="replace").strip()

    def listen_until(self, deadline: float) -> Iterator[Message]:
        """The messages until the child ends, or until a time of ``time.monotonic``."""
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            yield from self.messages(left)


def start_child(document: Message) -> ChildProcess:
    """Starts a child in a process group of its own and hands it the document.

    The child stays in the server's session: Linux may share the processor among sessions first (autogroups), and the
    child's niceness would then count only within its own session, not against the server's requests.

    The kernel kills a child when the thread that started it ends, so that thread must wait for the child.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "reshard_server.worker.child", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        env=_environment(),
    )
    line = json.dumps(document).encode() + b"\n"
    child = ChildProcess(process)
    threading.Thread(target=_feed, args=(child, line), daemon=True).start()
    return child


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name == BUCKETS or not name.startswith(PRIVATE_PREFIX)
    }


def _feed(child: ChildProcess, line: bytes) -> None:
    """Runs in a thread of its own: the document may be larger than the pipe, and the child may hang."""
    stdin = _stream(child.process.stdin)
    with suppress(OSError, ValueError):
        stdin.write(line)
        stdin.flush()
        child.has_document.set()


def _stream(found: IO[bytes] | None) -> IO[bytes]:
    if found is None:
        raise ValueError("the child was started without pipes")
    return found


def _has_room(fd: int) -> bool:
    """Whether a pipe takes PIPE_BUF bytes now; ``select`` knows no descriptors from 1,024 on."""
    room = select.poll()
    room.register(fd, select.POLLOUT)
    return bool(room.poll(0))
