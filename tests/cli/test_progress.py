from __future__ import annotations

import io
import sys
import time

from msgspec.structs import replace

from reshard.cli.progress import Bar, ProgressLines, bar, loading, short_name, watching
from reshard.engine.progress import Progress, Stage
from tests.cli.show import console, text_of


def progress(done: int, stage: Stage = "copying", tensor: str = "params/a/kernel") -> Progress:
    return Progress(done << 20, 800 << 20, done // 10, 100, tensor, stage)


def test_lines_come_every_few_seconds() -> None:
    now = 100.0
    shown: list[str] = []
    lines = ProgressLines(shown.append, lambda: now)
    for second in range(14):
        now = 100.0 + second
        lines(progress(10 * second))
    assert shown == [
        "copying: 6%, 50.0 MiB of 800 MiB, 10.0 MiB/s, 1 min 15 s left, task 5 of 100, params/a/kernel",
        "copying: 12%, 100 MiB of 800 MiB, 10.0 MiB/s, 1 min 10 s left, task 10 of 100, params/a/kernel",
    ]


def test_a_stage_has_its_own_rate() -> None:
    now = 0.0
    shown: list[str] = []
    lines = ProgressLines(shown.append, lambda: now)
    now = 100.0
    lines(progress(800, "copying"))
    lines(progress(0, "reading back"))
    now = 110.0
    lines(progress(400, "reading back"))
    now = 120.0
    lines(progress(0, "syncing"))
    last = shown[1:]
    assert last[0].startswith("reading back: 50%, 400 MiB of 800 MiB, 40.0 MiB/s, 10 s left")
    assert last[1] == "syncing to storage"


def test_nothing_moved_and_nothing_to_move() -> None:
    now = 0.0
    shown: list[str] = []
    lines = ProgressLines(shown.append, lambda: now)
    now = 9.0
    lines(Progress(0, 0, 0, 0, ""))
    assert shown[0].startswith("copying: 100%, 0 B of 0 B, –, unknown time left, task 0 of 0")


def test_lines_tell_of_hosts() -> None:
    now = 0.0
    shown: list[str] = []
    lines = ProgressLines(shown.append, lambda: now)
    for hosts in ({"a": 1 << 20}, {"a": 2 << 20, "b": 1 << 20}):
        now += 9.0
        lines(replace(progress(400), hosts=hosts))
    assert [line.rpartition(", ")[2] for line in shown] == ["1 host", "2 hosts"]


def test_the_bar_shows_bytes_rate_and_tensor() -> None:
    target = console(100, colours=True)
    with bar(target) as watch:
        assert isinstance(watch, Bar)
        watch(progress(10))
        watch(progress(200, tensor="params/[red]evil\x1b[2J/kernel"))
    text = text_of(target)
    assert "25%" in text
    assert "200 MiB of 800 MiB, " in text
    assert "params/[red]evil\\x1b[2J/kernel" in text
    assert "\x1b[2J" not in text


def test_the_bar_has_a_row_for_each_stage() -> None:
    target = console(100, colours=True)
    with bar(target) as watch:
        watch(progress(800))
        watch(progress(0, "reading back"))
        watch(progress(800, "syncing"))
    assert "reading back" in text_of(target)
    assert "to storage" in text_of(target)


def test_long_names_keep_their_end() -> None:
    assert short_name("x" * 60 + "/kernel") == "…" + "x" * 32 + "/kernel"


def test_programs_see_no_progress() -> None:
    with watching(as_json=True) as watch:
        assert watch is None
    with watching(as_json=False) as watch:
        assert isinstance(watch, ProgressLines)


def test_only_terminals_get_progress_bars(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with watching(as_json=False) as watch:
        assert isinstance(watch, ProgressLines)


def test_what_shows_the_result_is_loaded_while_the_device_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "made_for_this_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Progress] = []
    watch = loading(seen.append, "made_for_this_test")
    assert watch is not None
    watch(progress(400))
    assert "made_for_this_test" not in sys.modules
    watch(progress(0, "syncing"))
    deadline = time.monotonic() + 60
    while "made_for_this_test" not in sys.modules:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [p.stage for p in seen] == ["copying", "syncing"]
    assert loading(None, "made_for_this_test") is None
