"""Conversions in parts as tests ask for them: done, killed, and what lies in the folder of a target."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import reshard

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": ["x"]}, {"match": "big", "axes": [None, "x"]}],
}
LIMITS = {"max_memory": "256MiB", "workers": 2}


def convert_part(source: Path, target: Path | str, part: str, **options: Any) -> Any:
    given = {"layout": LAYOUT, **LIMITS, **options}
    return reshard.convert_part(source, target, part=part, **given)


def files_of(target: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file() and path.name != "_CHECKPOINT_METADATA"
    }


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


_PART = """
import os, signal, sys, reshard
from reshard.engine import task_stream
from tests.public.parts.in_parts import LAYOUT, LIMITS
task_stream.BATCH_TASKS = 1
source, target, part, after = sys.argv[1:]
def kill(progress):
    if progress.tasks_done == int(after):
        os.kill(os.getpid(), signal.SIGKILL)
reshard.convert_part(source, target, part=part, layout=LAYOUT, **LIMITS, progress=kill)
"""


def killed(source: Path, target: Path, part: str, after: int) -> None:
    """Does a part until so many tasks are done."""
    words = [sys.executable, "-c", _PART, str(source), str(target), part, str(after)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
