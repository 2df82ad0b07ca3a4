"""The child process that converts or answers a question: a fork of ``worker.template``, for one request.

It reads one JSON document from stdin (``jobs.child_request``) and writes one JSON object per line to stdout:
``{"progress": …}`` at most twice a second, ``{"publish": …}`` before a target appears, and at the end
``{"result": …}`` or ``{"problem": …}``, with ``log`` for words that only the operator may read. ``worker.parent`` describes the lines after
the document.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from reshard_server.worker.parent import Parent

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
        convert_all,
        publish_version,
    )
    from reshard_server.worker.fields import field_of

    progress = ProgressThrottle(lambda p: _send_if_read(out, {"progress": p}))

    def before_publish(target: str) -> None:
        parent.ask_to_publish(lambda: _send(out, {"publish": target}))

    try:
        if "question" in request:
            return {"result": answer(request["question"], request["arguments"], progress)}
        work = publish_version if "delta" in request else convert_all
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
