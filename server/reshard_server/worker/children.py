"""Starts child processes as forks of one process that has imported their modules (``worker.template``)."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import IO

from reshard_server.worker.process import (
    STDERR_BYTES,
    ChildProcess,
    Message,
    how_ended,
    read_number,
)

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
