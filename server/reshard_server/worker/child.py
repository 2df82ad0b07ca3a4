"""The child process that converts or answers a question: a fork of ``worker.template``, for one request.

It reads one JSON document from stdin (``jobs.conversion_job``) and writes one JSON object per line to stdout:
``{"progress": …}`` at most twice a second, ``{"publish": …}`` before a target appears, and at the end ``{"result": …}``,
``{"begun": …}`` for parts that were planned, or ``{"problem": …}``, with ``log`` for words that only the operator may read. Each line of
stdin after the document is ``{"lease_ends": …}`` or ``{"may_publish": …}``.

A child must not continue after another process has resumed the same job. So it ends when the server dies: the kernel
kills the template with the server, and the child with the template; if the kernel cannot, stdin ends. It also ends when
the server's lease has ended; the server renews the lease while the database confirms its heartbeats. Right before the
child publishes, it asks the server, and the server asks the database.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from reshard_server.host_clock import host_seconds

STOPPED = 143
"""Exit status after SIGTERM, as shells show it."""

_NICENESS = 10
"""The server's requests run first; without requests this costs nothing."""

_OOM_SCORE = "500"
"""Score of this process for the kernel, so that a host without memory ends it rather than the server."""


def run_child() -> int:
    """Reads the request, carries it out, and writes the result or the problem; returns the exit code."""
    out = os.dup(sys.stdout.fileno())  # for messages only: anything that is printed goes to stderr
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    parent = Parent()
    request = parent.document
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _yield_to_server(request["data_bytes"], request.get("niceness", _NICENESS))
        last_message = _carry_out(request, out, parent)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # too late to stop
        _send(out, last_message)
    except KeyboardInterrupt:
        return STOPPED
    return 0


def _carry_out(request: dict[str, Any], out: int, parent: Parent) -> dict[str, Any]:
    """The last message: the result or the problem."""
    from reshard.errors import ReshardError
    from reshard_server.errors.problems import for_the_log, problem_of
    from reshard_server.worker.answer import answer
    from reshard_server.worker.convert import (
        TARGET_BUSY,
        ProgressThrottle,
        begin_parts,
        commit_parts,
        convert_all,
        join_part,
        publish_version,
    )
    from reshard_server.worker.fields import field_of
    from reshard_server.worker.moved_over_time import MovedOverTime

    progress = ProgressThrottle(lambda p: _send_if_read(out, {"progress": p}))

    def before_publish(target: str) -> None:
        parent.ask_to_publish(lambda: _send(out, {"publish": target}))

    try:
        if "question" in request:
            return {"result": answer(request["question"], request["arguments"], progress)}
        if "begin" in request:
            return {"begun": begin_parts(request)}
        progress.over_time = MovedOverTime()
        if "join" in request:
            return {"result": join_part(request, progress)}
        kinds = {"delta": publish_version, "commit": commit_parts}
        work = next((kinds[name] for name in kinds if name in request), convert_all)
        return {"result": work(request, progress, before_publish)}
    except TARGET_BUSY as error:
        return {"problem": problem_of(error, field_of(error, request)).document(), "busy": True}
    except ReshardError as error:
        problem = problem_of(error, field_of(error, request)).document()
        words = for_the_log(error)
        return {"problem": problem} if words is None else {"problem": problem, "log": words}


def _yield_to_server(data_bytes: int | None, niceness: int) -> None:
    """Gives the server priority on processor and memory; limits the memory if a limit is given."""
    os.nice(niceness)
    with suppress(OSError):  # a kernel or sandbox without it
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    if data_bytes is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, most))


def _send_if_read(out: int, message: dict[str, Any]) -> None:
    """Sends only if the pipe has room: a parent that does not read must not block the conversion."""
    line = _line(message)
    if len(line) <= select.PIPE_BUF and select.select([], [out], [], 0)[1]:
        os.write(out, line)


def _send(out: int, message: dict[str, Any]) -> None:
    line = memoryview(_line(message))
    while line:
        line = line[os.write(out, line) :]


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


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
