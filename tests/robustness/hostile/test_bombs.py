"""Small files that would fill memory, or take hours: each is answered or refused in one line, within limits of the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.robustness.hostile.bombs import ASKED, BOMBS

ROOT = Path(__file__).parents[3]
LONGEST = 600
ANSWERED = ("item, as the value", "state, as a key", "state, a key of as many as are read")
"""These are read: a value is named that is not read, and the text of a key is cut."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The answers of one process, which ends by a signal, or with a traceback, where a limit is reached."""
    folder = tmp_path_factory.mktemp("bombs")
    command = [sys.executable, "-m", "tests.robustness.hostile.bombs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [*BOMBS, *ASKED])
def test_a_bomb_is_refused_in_one_short_line(said: dict[str, str], name: str) -> None:
    assert said[name].isprintable()
    assert len(said[name]) < LONGEST
    kind = said[name].partition(":")[0]
    assert kind in ("CorruptError", "FormatError", "LayoutError") or name in ANSWERED
