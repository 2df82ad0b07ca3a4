"""Conversions to a bucket in processes of their own, to be killed, stopped and raced; loads neither jax nor Orbax.

They are forked from a process that has imported reshard and has used no bucket: a child of one that has would hang.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from msgspec.structs import replace

import reshard
from reshard.conversion import convert as convert_module  # noqa: F401 - so that forked processes have it
from reshard.engine import task_stream
from reshard.errors import ReshardError
from reshard.storage import host, target
from reshard.storage.buckets import lease, objects
from reshard.storage.buckets.clouds import CLOUDS
from tests.emulators.no_clock import no_clock
from tests.forkserver import forkserver

PART_BYTES = 1 << 16


ENDING_S = 300.0
"""A process that has not ended by then hangs, however busy the machine is."""


class Child:
    """A conversion in a process of its own, which has begun; ``answer`` is how it ended."""

    def __init__(self, process: BaseProcess, answers: Connection) -> None:
        self._process = process
        self._answers = answers

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        self._process.join(ENDING_S)
        assert self._process.exitcode is not None
        return self._process.exitcode

    def answer(self) -> str:
        """``done``, ``already done``, or the kind and the text of its error."""
        assert self._answers.poll(ENDING_S)
        told: str = self._answers.recv()
        self.ended()
        return told


class Awaited:
    """A process that is not started yet, to be killed or stopped at one of its requests.

    The request may arrive at the server before the test knows the process.
    """

    def __init__(self) -> None:
        self._child: Future[Child] = Future()

    def is_this(self, child: Child) -> None:
        self._child.set_result(child)

    def send(self, number: signal.Signals) -> None:
        os.kill(self._child.result(ENDING_S).pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)


def start(
    environment: Mapping[str, str], source: object, target: str, options: Mapping[str, Any],
    prepare: Callable[[], None] | None = None,
) -> Child:  # fmt: skip
    """Starts a conversion; ``prepare`` is called in its process first."""
    return start_call(environment, "convert", (str(source), target), options, prepare)


def start_call(
    environment: Mapping[str, str], name: str, arguments: Sequence[Any], options: Mapping[str, Any],
    prepare: Callable[[], None] | None = None,
) -> Child:  # fmt: skip
    """As ``start``, of another public function."""
    context = forkserver()
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_call, args=(there, dict(environment), name, arguments, options, prepare)
    )
    process.start()
    there.close()
    return Child(process, here)


def _call(
    answers: Connection, environment: dict[str, str], name: str, arguments: Sequence[Any],
    options: dict[str, Any], prepare: Callable[[], None] | None,
) -> None:  # fmt: skip
    os.environ.update(environment)
    small_tasks()
    if prepare is not None:
        prepare()
    try:
        report = getattr(reshard, name)(*arguments, **options)
    except ReshardError as error:
        answers.send(f"{type(error).__name__}: {error}")
    else:
        answers.send("already done" if getattr(report, "already_done", False) else "done")


def small_tasks() -> None:
    """Small batches and parts, so that a small checkpoint takes many requests."""
    task_stream.BATCH_TASKS = 1
    objects.WHOLE_BYTES = objects._PART_BYTES = target.PIECE_BYTES = PART_BYTES
    for scheme, cloud in CLOUDS.items():
        CLOUDS[scheme] = replace(cloud, least_part_bytes=1)


_FOR_GOOD = ExitStack()


def without_clock() -> None:
    """Requests have the numbers that they have in the process of the test."""
    _FOR_GOOD.enter_context(no_clock())


def on_another_host() -> None:
    """Leases of other processes are those of another host, and die in seconds; records are put at once."""
    quick_leases()
    real = host.process_mark
    lease.process_state = lambda _: "unknown"
    host.process_mark = lambda: real() | {"host": f"host-{os.getpid()}"}
    lease.process_mark = host.process_mark


def patient() -> None:
    """As ``quick_leases``; but a run that lives is not taken for dead where the machine is busy."""
    quick_leases()
    lease.DEAD_S = 5.0


def patient_on_another_host() -> None:
    on_another_host()
    patient()


def quick_leases() -> None:
    lease.BEAT_S, lease.SURE_S = 0.2, 0.8
    lease.DEAD_S, lease.LOOK_S = 1.6, 0.1
