"""The child's side of the connection to its parent, the server that started it.

A child must not continue after another process has resumed the same job. So it ends when the server dies: the kernel
kills the template with the server, and the child with the template; if the kernel cannot, stdin ends. It also ends when
the server's lease has ended; the server renews the lease while the database confirms its heartbeats. Right before the
child publishes, it asks the server, and the server asks the database.

The first line of stdin is the document. Each later line is ``{"lease_ends": …}`` or ``{"may_publish": …}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from reshard_server.host_clock import host_seconds

PARENT_GONE = 86
"""Exit status of a child whose parent has ended."""

LEASE_ENDED = 87
"""Exit status of a child that may not continue: its parent's lease ended, or another attempt runs."""

_PR_SET_PDEATHSIG = 1
_STDIN = 0
_READ_BYTES = 1 << 16


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the process ``parent`` dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Against a parent that died before the call: the kernel sends no signal then.
    if os.getppid() != parent:
        _exit_without_parent()


class Parent:
    """Reads the parent's messages.

    Attributes:
        document: the first line, the request.
    """

    def __init__(self) -> None:
        self._lines = _lines()
        self.document: dict[str, Any] = json.loads(next(self._lines))
        self._lease_ends: float | None = self.document.get("lease_ends")
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        if self._lease_ends is not None:
            threading.Thread(target=self._watch_lease, daemon=True).start()

    def ask_to_publish(self, ask: Callable[[], None]) -> None:
        """Returns once the parent allows publishing; ends the process if it refuses or never answers."""
        if self._lease_ends is None:
            return
        ask()
        if not self._answers.get():
            os._exit(LEASE_ENDED)

    def _listen(self) -> None:
        for line in self._lines:
            message = json.loads(line)
            if "lease_ends" in message:
                self._lease_ends = message["lease_ends"]
            if "may_publish" in message:
                self._answers.put(message["may_publish"])

    def _watch_lease(self) -> None:
        # Against a parent that hangs: this child ends with the lease, before others begin.
        wait = threading.Event().wait
        while (left := (self._lease_ends or 0.0) - host_seconds()) > 0:
            wait(left)
        os._exit(LEASE_ENDED)


def _lines() -> Iterator[bytes]:
    """Lines of stdin, read without a buffered reader, whose lock a thread would hold when the process ends."""
    data = b""
    while True:
        more = os.read(_STDIN, _READ_BYTES)
        if not more:
            _exit_without_parent()
        *lines, data = (data + more).split(b"\n")
        yield from lines


def _exit_without_parent() -> NoReturn:
    os._exit(PARENT_GONE)
