"""Server processes as forks of one process that has imported their modules, which takes two seconds of each start otherwise."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["reshard.cli.app", "reshard_server.serve", "reshard_server.jobs.queue"])


class Forked:
    """A process, used as one of ``subprocess.Popen``."""

    def __init__(
        self, words: Sequence[object], env: dict[str, str], cwd: Path, stdout: Path, stderr: Path
    ) -> None:
        texts = [str(word) for word in words]
        self._process = _FORKS.Process(target=_run, args=(texts, env, cwd, stdout, stderr))
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
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
