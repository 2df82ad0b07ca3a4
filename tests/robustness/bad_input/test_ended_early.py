"""Runs that are killed, interrupted or in the way of each other."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reshard
from reshard.errors import (
    IncompleteCheckpointError,
)
from tests.robustness.bad_input.checking import (
    converts,
    fingerprint,
    leftovers,
    nothing_changes,
)

SLOW = """
import os, sys
from reshard.cli import main
write, done = os.pwrite, []

def slow(*args):
    done.append(args)
    if len(done) == 4:
        print("midway", flush=True)
        sys.stdin.read()
    return write(*args)

os.pwrite = slow
main()
"""


def start_slowly(source: Path, target: Path, *args: str) -> subprocess.Popen[str]:
    """A conversion in a process of its own that has written a part, and goes on when its input ends."""
    command = [sys.executable, "-c", SLOW, "convert", str(source), str(target), *args]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "midway\n"
    return child


def command(*args: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "reshard", *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_killed_and_started_again(source, tmp_path):
    target, before = tmp_path / "dst", fingerprint(source)
    child = start_slowly(source, target)
    child.kill()
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert not target.exists()
    assert leftovers(tmp_path) == [".dst.reshard-partial"]
    with pytest.raises(IncompleteCheckpointError):
        reshard.inspect(tmp_path / ".dst.reshard-partial")
    done = command("convert", source, target)
    assert done.returncode == 0, done.stderr
    assert reshard.verify(source, target).differences == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dst", "src"]
    assert fingerprint(source) == before


def test_killed_while_overwriting(source, tmp_path):
    target = Path(shutil.copytree(source, tmp_path / "dst"))
    before = fingerprint(target)
    child = start_slowly(source, target, "--overwrite")
    child.kill()
    child.communicate(timeout=60)
    assert fingerprint(target) == before
    converts(source, target, overwrite=True)


def test_second_run_on_one_target(source, tmp_path):
    target = tmp_path / "dst"
    child = start_slowly(source, target)
    try:
        second = command("convert", source, target)
    finally:
        child.communicate(timeout=60)
    assert second.returncode == 1
    assert (
        f"another run (process {child.pid}) is writing '{target}' now; wait for it" in second.stderr
    )
    assert "Traceback" not in second.stderr
    assert child.returncode == 0
    assert reshard.verify(source, target).differences == 0


def test_interrupted(source, tmp_path):
    child = start_slowly(source, tmp_path / "dst")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted; no target was published" in said
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


def test_the_command_itself(source, tmp_path):
    (source / "params.kernel" / "0.0").unlink()
    with nothing_changes(source, tmp_path / "dst"):
        done = command("convert", source, tmp_path / "dst")
    assert done.returncode == 1
    assert done.stdout == ""
    assert ": 1 chunk is not stored: 'params/kernel' (1 of " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_answers_in_json(source):
    done = command("convert", source, source / "dst", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "StorageError"
    assert "is inside the source" in error["message"]
