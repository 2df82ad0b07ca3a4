"""Parts in processes that are killed again and again, and begun again, as an engine of jobs does: ``killed_often.py TARGET PARTS PAUSE``.

A program of its own, which loads neither jax nor Orbax: where their threads run, a forked process may find a lock taken that
nobody will ever give back. It does all parts and the commit, and prints how often it killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import deque
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import reshard
import reshard.conversion.parts.commit
import reshard.conversion.parts.part  # loaded once, before the first fork
from reshard.engine import task_stream

AT_ONCE = 3
"""Processes at work, on a machine of two processors."""

KILLED_COMMITS = 2
"""The commits that are killed; each plans before it goes on, and would never end if all were killed."""


def do_part(target: str, part: str) -> None:
    """One part, in a process of its own, which records each task."""
    task_stream.BATCH_TASKS = 1
    reshard.join_part(target, part)


class Host:
    """Processes that do parts and the commit."""

    def __init__(self, pause_s: float, most: int) -> None:
        self._context = get_context("fork")
        self._pause_s, self._next = pause_s, time.monotonic() + pause_s
        self._chance = random.Random(7)
        self._most = most  # against a machine so busy that no part ends between two kills
        self.kills = 0

    def do(self, target: str, parts: list[str]) -> None:
        """Does all parts, and kills one process after each pause."""
        waiting, running = deque(parts), dict[str, BaseProcess]()
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                part = waiting.popleft()
                running[part] = self._begun(do_part, target, part)
            self._kill([*running.values()])
            for part, process in [*running.items()]:
                if process.exitcode is not None:
                    del running[part]
                    assert process.exitcode in (0, -signal.SIGKILL), part
                    if process.exitcode:
                        waiting.append(part)
            time.sleep(0.005)

    def commit(self, target: str) -> None:
        """Commits until a process ends by itself."""
        for left in range(KILLED_COMMITS, -1, -1):
            process = self._begun(reshard.commit, target)
            process.join(0.1 * (KILLED_COMMITS - left + 1) if left else None)
            if process.exitcode is None:
                self._end(process)
        assert process.exitcode == 0

    def _begun(self, work: Any, *words: str) -> BaseProcess:
        process = self._context.Process(target=work, args=words)
        process.start()
        return process

    def _kill(self, running: list[BaseProcess]) -> None:
        alive = [process for process in running if process.exitcode is None]
        if alive and self.kills < self._most and time.monotonic() >= self._next:
            self._end(self._chance.choice(alive))
            self._next = time.monotonic() + self._pause_s

    def _end(self, process: BaseProcess) -> None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        self.kills += 1


def main() -> None:
    target, count, pause_s = sys.argv[1:]
    host = Host(float(pause_s), most=int(count))
    host.do(target, [f"{number}/{count}" for number in range(1, int(count) + 1)])
    host.commit(target)
    assert not {"jax", "orbax"} & sys.modules.keys()
    print(host.kills)


if __name__ == "__main__":
    main()
