"""A child process: started, listened to, ended. What it converts is no matter here."""

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
"""Settings in the environment may hold passwords; the child needs none of them."""

STDERR_BYTES = 8192
EXIT_SECONDS = 5.0
"""How long a process may take to end that was killed, or has closed its output."""

MESSAGE_BYTES = 1 << 28
_READ_BYTES = 1 << 16

Message = dict[str, Any]


@dataclass
class ChildProcess:
    """A running child; made by ``start_child``, and to be ended by ``close``.

    Attributes:
        has_document: set once its document is written, before which nothing else is sent.
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
        """Whether it closed its output; then it has ended, or is about to."""
        return not self._open.get_map()

    def messages(self, seconds: float) -> Iterator[Message]:
        """What it says within this time; sooner where it has said something."""
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
        """Tells it something short, where it listens: a child that hangs must not hold the server up."""
        if not self.has_document.is_set():
            return
        with suppress(OSError, ValueError):
            stdin = _stream(self.process.stdin).fileno()
            if select.select([], [stdin], [], 0)[1]:  # room for PIPE_BUF bytes
                os.write(stdin, json.dumps(message).encode() + b"\n")

    def terminate(self) -> None:
        """Asks it to end (SIGTERM)."""
        self.process.terminate()

    def close(self) -> int:
        """Ends it and whatever it started, at once; its return code, negative for a signal.

        A process that the kernel cannot end now, in a system call on a storage that hangs, ends once that
        returns, and does nothing before; it is not waited for.
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
            with suppress(OSError):  # what it never read of its request
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

    def said(self) -> str:
        """The end of what it wrote to stderr."""
        return self._stderr.decode(errors="replace").strip()

    def listen_until(self, deadline: float) -> Iterator[Message]:
        """What it says until it ends, or until a time of ``time.monotonic``."""
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            yield from self.messages(left)


def start_child(document: Message) -> ChildProcess:
    """Starts a child in a process group of its own and hands it the document.

    Not in a session of its own: Linux may share the processor among sessions first (autogroups), and then
    stepping back (nice) would count within the child's own only, not beside the server's requests.

    The kernel kills a child when the thread that started it ends: that thread must stay with it.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "reshard_server.worker.child", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        env={k: v for k, v in os.environ.items() if not k.startswith(PRIVATE_PREFIX)},
    )
    line = json.dumps(document).encode() + b"\n"
    child = ChildProcess(process)
    threading.Thread(target=_feed, args=(child, line), daemon=True).start()
    return child


def _feed(child: ChildProcess, line: bytes) -> None:
    """From a thread of its own: a pipe holds less than a document may have, and the child may hang."""
    stdin = _stream(child.process.stdin)
    with suppress(OSError, ValueError):
        stdin.write(line)
        stdin.flush()
        child.has_document.set()


def _stream(found: IO[bytes] | None) -> IO[bytes]:
    if found is None:
        raise ValueError("the child was started without pipes")
    return found
