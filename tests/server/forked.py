"""Server processes as forks of one process that has imported their modules, which takes two seconds of each start otherwise."""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, NoReturn

from reshard_server.worker import child, children, convert, template
from reshard_server.worker.child import die_with_parent

from reshard import Progress
from tests.forkserver import forkserver

STEP_BACK = "TESTED_CHILDREN_STEP_BACK"
"""The variable with which the children of servers step back for them, as they do elsewhere."""

WAITS = "TESTED_WAITS"
"""The variable with times that a server's modules have instead of their own, as JSON: by the name of the constant."""

HOLD = "hold"
"""A file in a server's folder: while it is there, a conversion stops once half of its bytes have moved, and a part is recorded."""


class Forked:
    """A process, used as one of ``subprocess.Popen``."""

    def __init__(
        self, words: Sequence[object], env: dict[str, str], cwd: Path, stdout: Path, stderr: Path
    ) -> None:
        texts = [str(word) for word in words]
        self._process = forkserver().Process(target=_run, args=(texts, env, cwd, stdout, stderr))
        self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("server", seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(words: list[str], env: dict[str, str], cwd: Path, stdout: Path, stderr: Path) -> None:
    """``python -m MODULE WORD…``: the first word is the module."""
    os.setsid()  # as a service: what it converts steps back for it, not for tests
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    for name, value in json.loads(env.get(WAITS, "{}")).items():
        of, _, constant = name.rpartition(".")
        setattr(resolve_name(of), constant, value)
    _lend_a_template()
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _lend_a_template() -> None:
    """Forks this server's first template now, while it has one thread: the template's own imports take a second, too."""
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become_template(its)
    its.close()
    popen = subprocess.Popen
    lent = [_Template(pid, ours)]

    def start(words: list[str], **more: Any) -> Any:
        if lent and template.__name__ in words:
            return lent.pop().start(**more)
        return popen(words, **more)

    children.subprocess = SimpleNamespace(
        Popen=start, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE
    )  # type: ignore[attr-defined]


def _become_template(its: socket.socket) -> NoReturn:
    die_with_parent(os.getppid())
    text, given, *_ = socket.recv_fds(its, 1 << 20, 2)
    if not text:
        os._exit(0)  # the server ends without one
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(json.loads(text))
    for fd, number in zip(given, (0, 2), strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if (
        STEP_BACK not in os.environ
    ):  # other tests would take the processor from a child that steps back
        child._NICENESS = 0
    convert.ProgressThrottle = _HeldUp  # type: ignore[misc]
    sys.argv = ["", str(os.getppid())]
    its.close()
    os._exit(template.main())


class _HeldUp(convert.ProgressThrottle):
    def __call__(self, progress: Progress) -> None:
        super().__call__(progress)
        hold, moved, total = Path(HOLD), progress.moved_bytes, progress.total_bytes
        if hold.exists() and total / 2 <= moved < total:
            self.report(self._document(progress, self.clock()))
            while hold.exists():
                time.sleep(0.02)


class _Template:
    """A forked template, used as one of ``subprocess.Popen``."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid, self.returncode, self._control = pid, 0, control

    def start(self, *, stdin: int, env: dict[str, str], **_: object) -> _Template:
        self._errors, errors = os.pipe()
        socket.send_fds(self._control, [json.dumps(env).encode()], [stdin, errors])
        os.close(errors)
        self._control.close()
        return self

    def communicate(self) -> tuple[bytes, bytes]:
        with os.fdopen(self._errors, "rb") as errors:
            said = errors.read()
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return b"", said

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
