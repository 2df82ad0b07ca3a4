"""Shows the progress of a conversion on stderr: a bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from reshard.api.progress_lines import (
    ProgressLines,
    amount_text,
    going_on,
    hosts_text,
    short_name,
)
from reshard.cli.console import stderr_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from reshard import Progress

Watcher = Callable[["Progress"], None]


def watching(as_json: bool) -> AbstractContextManager[Watcher | None]:
    """The ``progress`` callback of a run; with ``--json`` nothing is shown."""
    if as_json:
        return nullcontext(None)
    return bar(stderr_console()) if sys.stderr.isatty() else nullcontext(ProgressLines())


def loading(watcher: Watcher | None, module: str) -> Watcher | None:
    """A watcher that also imports ``module`` while the run waits for the device alone."""
    if watcher is None:
        return None

    def watch(progress: Progress) -> None:
        if progress.stage == "syncing":
            threading.Thread(target=import_module, args=(module,), daemon=True).start()
        watcher(progress)

    return watch


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
                amount=amount_text(progress, elapsed),
                name=f"{short_name(progress.tensor)}{hosts_text(progress)}",
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
