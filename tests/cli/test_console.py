from __future__ import annotations

import os
import pty
import sys

import pytest
from rich.text import Text

from reshard.cli.console import between_words, say
from tests.cli.show import show


def test_lines_are_broken_between_words_only() -> None:
    path = "/srv/checkpoints/a-long-run/1000"
    text = f"error: cannot write to {path}: no space left\nsee: reshard convert --help"
    assert between_words(text, 24).splitlines() == [
        "error: cannot write to",
        path + ":",
        "no space left",
        "see: reshard convert",
        "--help",
    ]
    assert between_words(text, 200) == text
    assert between_words("", 10) == ""
    assert between_words("日本 語日本", 6) == "日本\n語日本"


def test_answers_keep_names_whole_and_their_style() -> None:
    name = "params/layers/attention/kernel"
    assert show([Text(f"2 tensors: {name}, step")], 20) == f"2 tensors:\n{name},\nstep\n"


def test_stderr_is_broken_on_a_terminal_and_not_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = " ".join(["word"] * 30)
    say(long)
    assert capsys.readouterr().err == long + "\n"
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((40, 24)))
        say(long)
        shown = os.read(ours, 1000).decode()
    os.close(ours)
    assert shown.splitlines() == [" ".join(["word"] * 8)] * 3 + [" ".join(["word"] * 6)]
