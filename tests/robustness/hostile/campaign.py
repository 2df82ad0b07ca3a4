"""Runs cases in child processes and checks their bounds: outcome, time, memory, no write elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO

from tests.robustness.hostile.cases import make_case

CASE_SECONDS = 20.0
"""Processor time for all operations on one checkpoint; most take a tenth of a second."""

HANG_SECONDS = 120.0
"""Beyond this a case hangs, however busy the machine is."""

CASE_BYTES = 1 << 30
"""Peak memory of a case beyond what the process had before it."""

START_SECONDS = 120.0

ENDING_SECONDS = 60.0
"""A process whose pipe has closed ends a moment later."""

_REPOSITORY = Path(__file__).parents[3]


@dataclass
class Findings:
    """What a campaign found.

    Attributes:
        outcomes: ``operation: outcome`` → how often.
        wrong: one text for each case that broke a bound.
    """

    cases: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    slowest_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Child:
    """A process that takes seeds and answers with what it saw; started again after it was killed."""

    def __init__(self, specimens: Path, work: Path) -> None:
        self._specimens, self._work = specimens, work
        self._process: subprocess.Popen[str] | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()

    def run(self, seed: int) -> dict[str, object]:
        """What the child saw of a case; ``wrong`` says so where it died or took too long."""
        process = self._started()
        _stream(process.stdin).write(f"{seed}\n")
        _stream(process.stdin).flush()
        started = None
        try:
            started = self._answer(HANG_SECONDS)
            answer = self._answer(HANG_SECONDS) if started else None
            if answer is not None:
                return answer
            reason = f"ends with {process.wait(ENDING_SECONDS)}"
        except (Empty, subprocess.TimeoutExpired):
            reason = "hangs"
        self.stop()
        return {"seed": seed, **(started or {}), "wrong": [f"the process {reason}: {self._said()}"]}

    def start(self) -> None:
        """Starts the process, which takes seconds, so that they are no case's."""
        self._started()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(parents=True)
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.robustness.hostile.child", str(self._specimens), str(self._work)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=(self._work.parent / f"{self._work.name}.err").open("w"),
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_REPOSITORY), *sys.path])},
            )  # fmt: skip
            self._listen(self._process)
            if self._answer(START_SECONDS) is None:
                raise RuntimeError(f"the child did not start: {self._said()}")
        return self._process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Lines come through a thread, since waiting for the pipe would miss those already read."""
        lines = self._lines = SimpleQueue()
        stream = _stream(process.stdout)

        def read() -> None:
            for line in stream:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()

    def _answer(self, seconds: float) -> dict[str, object] | None:
        """The next line of the child, or None where it has ended; Empty after so many seconds."""
        line = self._lines.get(timeout=seconds)
        return json.loads(line) if line else None

    def _said(self) -> str:
        path = self._work.parent / f"{self._work.name}.err"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def run_campaign(
    specimens: Path,
    work: Path,
    seeds: Iterable[int],
    seconds: float,
    report: Callable[[str], None] = print,
) -> Findings:
    """Runs cases until the seeds or the time are used up.

    Args:
        report: called with each broken bound as it is found.
    """
    found = Findings()
    with Child(specimens, work / "child") as child:
        child.start()
        began = time.monotonic()
        for seed in _until(seeds, began + seconds):
            answer = child.run(seed)
            for text in _add(found, answer):
                report(text)
                _keep_example(seed, specimens, work)
        found.seconds = time.monotonic() - began
    return found


def _until(seeds: Iterable[int], end: float) -> Iterator[int]:
    for seed in seeds:
        if time.monotonic() >= end:
            return
        yield seed


def _add(found: Findings, answer: dict[str, object]) -> list[str]:
    found.cases += 1
    seconds, peak = float(str(answer.get("seconds", 0))), int(str(answer.get("peak_bytes", 0)))
    found.slowest_seconds = max(found.slowest_seconds, seconds)
    found.peak_bytes = max(found.peak_bytes, peak)
    outcomes = answer.get("outcomes", {})
    assert isinstance(outcomes, dict)
    found.outcomes.update(f"{k}: {v}" for k, v in outcomes.items())
    wrong = answer["wrong"]
    assert isinstance(wrong, list)
    if peak > CASE_BYTES:
        wrong = [*wrong, f"it takes {peak >> 20} MiB"]
    if seconds > CASE_SECONDS:
        wrong = [*wrong, f"it takes {seconds:.0f} s"]
    texts = [f"seed {answer['seed']} ({answer.get('what')}): {w}" for w in wrong]
    found.wrong += texts
    return texts


def _keep_example(seed: int, specimens: Path, work: Path) -> None:
    """The checkpoint itself, below ``work/wrong``, to be looked at."""
    folder = work / "wrong" / str(seed)
    if not folder.exists():
        folder.mkdir(parents=True)
        make_case(seed, specimens, folder)
