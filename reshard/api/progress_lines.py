"""Progress as lines of text: one that is redrawn in place, or one every few seconds for logs."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from reshard.answers.record import duration_text, rate_text, safe
from reshard.engine.progress import Progress
from reshard.geometry.sizes import format_bytes

SECONDS_BETWEEN_LINES = 5.0
MOST_NAME = 40
SECONDS_BETWEEN_DRAWINGS = 0.1
BAR_WIDTH = 20


def progress_bar() -> Callable[[Progress], None]:
    """Makes a function for ``progress=`` that shows the progress of a call on stderr, with rate and time left.

    In a terminal and in a notebook it is a bar, which is drawn again in place; elsewhere, such as in the log of a job, a
    line every five seconds. Make a new one for each call.

    >>> convert("run/1000", "served", mesh="model=8", progress=progress_bar())  # doctest: +SKIP
    copying [##########          ]  50%, 1.05 GiB of 2.10 GiB, 701 MiB/s, 1.5 s left
    """
    is_drawn = sys.stderr.isatty() or "ipykernel" in sys.modules
    return DrawnLine(sys.stderr) if is_drawn else ProgressLines()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class ProgressLines:
    """Plain lines for logs: the first after a few seconds, so that quick runs print none."""

    def __init__(
        self, show: Callable[[str], None] = _print, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = ""
        self._started = self._printed = clock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            now = self._clock()
            if progress.stage != self._stage:
                self._stage, self._started = progress.stage, now
                if progress.resumed_bytes:
                    self._show(going_on(progress))
            if now - self._printed >= SECONDS_BETWEEN_LINES:
                self._printed = now
                self._show(_line(progress, now - self._started))


def _line(progress: Progress, seconds: float) -> str:
    if progress.stage == "syncing":
        return "syncing to storage"
    done, total = progress.moved_bytes, progress.total_bytes
    now = done - progress.resumed_bytes
    left = duration_text(seconds * (total - done) / now) if now else "unknown time"
    return (
        f"{progress.stage}: {_share(done, total)}, {format_bytes(done)} of {format_bytes(total)}, "
        f"{rate_text(now, seconds)}, {left} left, task {progress.tasks_done:,} of "
        f"{progress.tasks:,}, {safe(progress.tensor)}{hosts_text(progress)}"
    )


def hosts_text(progress: Progress) -> str:
    """The number of hosts that have done something, as text; "" in a run without parts."""
    count = len(progress.hosts)
    return f", {count} {'host' if count == 1 else 'hosts'}" if count else ""


def going_on(progress: Progress) -> str:
    """The first line of a run that resumes an earlier one."""
    share = _share(progress.resumed_bytes, progress.total_bytes)
    return f"resuming: {share} were done before"


def _share(done: int, total: int) -> str:
    return f"{100 * done / total:.0f}%" if total else "100%"


def short_name(name: str) -> str:
    """The end of a long name, more telling than its beginning; safe for a terminal."""
    text = safe(name)
    return text if len(text) <= MOST_NAME else f"…{text[-MOST_NAME + 1 :]}"


class DrawnLine:
    """One line for each stage, drawn again and again over itself; it ends when the stage has moved all of its bytes."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = ""
        self._started = self._drawn = clock()
        self._width = 0
        self._is_whole = False

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            now = self._clock()
            is_whole = progress.moved_bytes >= progress.total_bytes
            if progress.stage != self._stage:
                self._end()
                self._stage, self._started, self._is_whole = progress.stage, now, False
            elif self._is_whole or (now - self._drawn < SECONDS_BETWEEN_DRAWINGS and not is_whole):
                return
            self._draw(_bar_text(progress, now - self._started))
            self._drawn, self._is_whole = now, is_whole
            if is_whole:
                self._end()

    def _draw(self, text: str) -> None:
        # A line as wide as the terminal continues on the next line, which cannot be drawn over.
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{text.ljust(self._width)}")
        self._stream.flush()
        self._width = len(text)

    def _end(self) -> None:
        if self._width:
            self._stream.write("\n")
            self._width = 0


def _bar_text(progress: Progress, seconds: float) -> str:
    done, total = progress.moved_bytes, progress.total_bytes
    filled = BAR_WIDTH * done // total if total else BAR_WIDTH
    drawn = f"{progress.stage} [{'#' * filled:<{BAR_WIDTH}}] {_share(done, total):>4}"
    return (
        f"{drawn}, {amount_text(progress, seconds)}{_left(progress, seconds)}{hosts_text(progress)}"
    )


def _left(progress: Progress, seconds: float) -> str:
    """The time left; "" for none."""
    now = progress.moved_bytes - progress.resumed_bytes
    rest = progress.total_bytes - progress.moved_bytes
    return f", {duration_text(seconds * rest / now)} left" if now > 0 and rest > 0 else ""


def amount_text(progress: Progress, seconds: float) -> str:
    """Bytes done, bytes in all, and the rate of this run."""
    if progress.stage == "syncing":
        return "to storage"
    done, total = format_bytes(progress.moved_bytes), format_bytes(progress.total_bytes)
    moved = progress.moved_bytes - progress.resumed_bytes
    return f"{done} of {total}, {rate_text(moved, seconds)}"
