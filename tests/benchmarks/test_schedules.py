"""The benchmark of a schedule, in a short form: its counts, never its times."""

from __future__ import annotations

import sys

import pytest

from benchmarks.service.schedules import main


def test_each_step_of_a_quick_run_is_converted_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--steps 6 --every 0.2 --mib 1 --idle 0.1 --same-target"
    monkeypatch.setattr(sys, "argv", ["schedules", *arguments.split()])
    assert main() == 0, capsys.readouterr().err
    assert "| ended |" in capsys.readouterr().out
