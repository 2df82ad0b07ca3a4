"""Shows the progress of a conversion on stderr: a bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from reshard.cli.console import say, stderr_console
from reshard.cli.text import duration_text, rate_text, safe
from reshard.geometry.sizes import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from reshard import Progress

Watcher = Callable[["Progress"], None]

SECONDS_BETWEEN_LINES = 5.0
MOST_NAME = 40


def watching(as_json: bool) -> AbstractContextManager[Watcher | None]:
    """The ``progress`` callback of a run; with ``--json`` nothing is shown."""
    if as_json:
        return nullcontext(None)
    return bar(stderr_console()) if sys.stderr.isatty() else nullcontext(ProgressLines())


def loading(watcher: Watcher | None, module: str) -> Watcher | None:
    """A watcher that also imports ``module`` while the run only waits for the device."""
    if watcher is None:
        return None

    def watch(progress: Progress) -> None:
        if progress.stage == "syncing":
            threading.Thread(target=import_module, args=(module,), daemon=True).start()
        watcher(progress)

    return watch


class ProgressLines:
    """Plain lines for logs: the first after a few seconds, so that quick runs print none."""

    def __init__(
        self, show: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic
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
        f"{progress.tasks:,}, {safe(progress.tensor)}{_hosts(progress)}"
    )


def _hosts(progress: Progress) -> str:
    """How many other hosts have done something; "" where there are none."""
    count = len(progress.hosts)
    return f", {count} other {'host' if count == 1 else 'hosts'}" if count else ""


def going_on(progress: Progress) -> str:
    """The first line of a run that resumes an earlier one."""
    share = _share(progress.resumed_bytes, progress.total_bytes)
    return f"resuming: {share} were done before"


def _share(done: int, total: int) -> str:
    return f"{100 * done / total:.0f}%" if total else "100%"


def short_name(name: str) -> str:
    """The end of a long name, which says more than its beginning; safe for a terminal."""
    text = safe(name)
    return text if len(text) <= MOST_NAME else f"…{text[-MOST_NAME + 1 :]}"


@contextmanager
def bar(console: Console) -> Iterator[Watcher]:
    """A bar with bytes, rate, time left and the current tensor; it disappears at the end."""
    with _columns(console) as shown:
        yield Bar(shown)


def _columns(console: Console) -> RichProgress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12, table_column=Column(min_width=12)),
        TextColumn("{task.percentage:>3.0f}%", markup=False),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
        TextColumn("{task.fields[name]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        console=console,
        transient=True,
        expand=True,
    )


class Bar:
    """One row for each stage, since every stage counts its bytes anew."""

    def __init__(self, shown: RichProgress) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._rows: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            row = self._row(progress)
            elapsed = self._shown.tasks[row].elapsed or 0.0
            self._shown.update(
                row,
                completed=progress.moved_bytes,
                total=progress.total_bytes,
                amount=_amount(progress, elapsed),
                name=f"{short_name(progress.tensor)}{_hosts(progress)}",
            )

    def _row(self, progress: Progress) -> TaskID:
        stage, resumed = progress.stage, progress.resumed_bytes
        if stage not in self._rows:
            # Bytes of an earlier run do not count in the rate.
            row = self._shown.add_task(stage, total=None, completed=resumed, amount="", name="")
            self._rows[stage] = row
            if resumed:
                self._shown.console.print(going_on(progress))
        return self._rows[stage]


def _amount(progress: Progress, seconds: float) -> str:
    if progress.stage == "syncing":
        return "to storage"
    done, total = format_bytes(progress.moved_bytes), format_bytes(progress.total_bytes)
    moved = progress.moved_bytes - progress.resumed_bytes
    return f"{done} of {total}, {rate_text(moved, seconds)}"
