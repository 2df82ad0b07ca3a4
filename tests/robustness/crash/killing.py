"""Conversions in a process of their own that kill themselves at a chosen point; loads neither jax nor Orbax.

The processes are forked from one that has imported reshard (``tests/forkserver.py``), so that each takes
milliseconds to start.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import reshard
from reshard.conversion import convert as convert_module  # noqa: F401 - so that forked processes have it
from reshard.deltas import make_delta as delta_module  # noqa: F401  so that forked processes have it
from reshard.engine import task_stream
from tests.forkserver import forkserver
from tests.robustness.faults.seam import CHANGES, Call, Go, at_the_seam

When = Literal["before", "after", "torn"]
ENDING_S = 300
"""A process that has not ended by then hangs, however busy the machine is."""

FILE_CALLS = CHANGES | {"unlink", "rmdir", "remove"}
"""Kinds of calls that change what is on the disk."""


@dataclass(frozen=True)
class Point:
    """The ``count``-th call of a function, named ``module:function`` or ``module:Class.method``.

    ``torn`` writes half of the data of a call to ``write_all`` first.
    """

    function: str
    when: When
    count: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.function.rpartition(':')[2]} {self.count}"


def run_killed(point: Point | None, source: Path | str, target: Path, **options: Any) -> int:
    """The exit code of a conversion that kills itself at ``point``, -9, or of one that does not get there, 0."""
    return _run(convert, point, str(source), str(target), options)


def run_many_killed(
    point: Point | None, source: Path, targets: list[reshard.Target], **limits: Any
) -> int:
    """As ``run_killed``, of a conversion to several targets."""
    return _run(convert_all, point, str(source), targets, limits)


def run_call_killed(point: Point | None, name: str, *arguments: Any, **options: Any) -> int:
    """As ``run_killed``, of another public function."""
    return _run(call, point, name, arguments, options)


def run_call_killed_at(number: int, root: Path, name: str, *arguments: Any, **options: Any) -> int:
    """As ``run_call_killed``, before the ``number``-th call of the system that changes something below ``root``."""
    return _run(call_at, number, root, name, arguments, options)


def _run(what: Callable[..., None], *arguments: Any) -> int:
    of_hub = {name: text for name, text in os.environ.items() if name.startswith("HF_")}
    child = forkserver().Process(target=begin, args=(of_hub, what, *arguments))
    child.start()
    child.join(ENDING_S)
    assert child.exitcode is not None, "it hangs"
    return child.exitcode


def begin(of_hub: dict[str, str], what: Callable[..., None], *arguments: Any) -> None:
    """Calls a function with the hub of this test, which the process from which it was forked does not know."""
    os.environ.update(of_hub)
    what(*arguments)


def convert_all(
    point: Point | None, source: str, targets: list[reshard.Target], limits: dict[str, Any]
) -> None:
    """Small batches, so that there are many points at which something is done."""
    task_stream.BATCH_TASKS = 1
    if point is not None:
        set_trap(point)
    reshard.convert_all(source, targets, **limits)


def convert(point: Point | None, source: str, target: str, options: dict[str, Any]) -> None:
    """Small batches, so that there are many points at which something is done."""
    task_stream.BATCH_TASKS = 1
    if point is not None:
        set_trap(point)
    reshard.convert(source, target, **options)


def call(
    point: Point | None, name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Small batches, so that there are many points at which something is done."""
    task_stream.BATCH_TASKS = 1
    if point is not None:
        set_trap(point)
    getattr(reshard, name)(*arguments, **options)


def call_at(
    number: int, root: Path, name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """As ``call``, and kills this process before a call of the system."""
    calls = 0

    def hook(made: Call, go: Go) -> Any:
        nonlocal calls
        calls += made.kind in FILE_CALLS
        if calls == number:
            _kill()
        return go()

    with at_the_seam(root, hook):
        call(None, name, arguments, options)


def set_trap(point: Point, end: Callable[[], None] | None = None) -> None:
    """Makes the function kill this process (or call ``end``) at the point."""
    module, _, path = point.function.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, name, _trapped(point, getattr(owner, name), end or _kill))


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _trapped(point: Point, real: Callable[..., Any], end: Callable[[], None]) -> Callable[..., Any]:
    calls = itertools.count(1)

    def trapped(*args: Any, **options: Any) -> Any:
        if next(calls) != point.count:  # threads, too, never get the same number
            return real(*args, **options)
        if point.when == "torn":
            fd, data, *rest = args
            real(fd, data[: len(data) // 2], *rest)
        result = real(*args, **options) if point.when == "after" else None
        end()
        return result

    return trapped
