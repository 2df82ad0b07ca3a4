"""The bar that a program shows: drawn in place, a line for each stage."""

from __future__ import annotations

import io
import os
import sys
from types import ModuleType

import pytest

from reshard import progress_bar
from reshard.api.progress_lines import DrawnLine, ProgressLines
from reshard.engine.progress import Progress, Stage


def progress(done: int, stage: Stage = "copying") -> Progress:
    return Progress(done << 20, 100 << 20, done // 10, 10, "kernel", stage)


def drawn(*events: tuple[float, Progress], columns: int = 100) -> str:
    now, stream = 0.0, io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        bar = DrawnLine(stream, lambda: now)
        for at, event in events:
            now = at
            bar(event)
    return stream.getvalue()


def test_it_is_drawn_over_itself_and_ends_when_all_is_moved() -> None:
    text = drawn(
        (0, progress(0)),
        (5, progress(50)),
        (5.01, progress(51)),
        (10, progress(100)),
        (11, progress(100)),
    )
    start = "\rcopying [                    ]   0%, 0 B of 100 MiB, –"
    half = "\rcopying [##########          ]  50%, 50.0 MiB of 100 MiB, 10.0 MiB/s, 5.0 s left"
    whole = "\rcopying [####################] 100%, 100 MiB of 100 MiB, 10.0 MiB/s"
    assert text == f"{start}{half}{whole.ljust(len(half))}\n"


def test_a_stage_has_a_line_of_its_own() -> None:
    text = drawn((0, progress(0)), (1, progress(40)), (2, progress(100, "syncing")))
    lines = text.split("\n")
    assert [line.rpartition("\r")[2].split(" [")[0] for line in lines[:-1]] == [
        "copying",
        "syncing",
    ]
    assert lines[1].endswith("100%, to storage")
    assert lines[-1] == ""


def test_a_line_is_never_as_wide_as_the_terminal() -> None:
    text = drawn((0, progress(0)), (5, progress(50)), columns=40)
    assert {len(part) for part in text.split("\r")[1:]} == {39}


def test_what_an_earlier_run_moved_is_not_in_the_rate() -> None:
    event = Progress(60 << 20, 100 << 20, 6, 10, "kernel", resumed_bytes=50 << 20)
    assert "60.0 MiB of 100 MiB, 10.0 MiB/s, 4.0 s left" in drawn((0, progress(50)), (1, event))


def test_a_terminal_and_a_notebook_have_a_bar_and_a_log_has_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress_bar(), ProgressLines)
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    assert isinstance(progress_bar(), DrawnLine)
    monkeypatch.delitem(sys.modules, "ipykernel")
    terminal, _ = (os.fdopen(fd, "w") for fd in reversed(os.openpty()))
    with terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert isinstance(progress_bar(), DrawnLine)
