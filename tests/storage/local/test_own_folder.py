"""Folders of views: those of killed processes are removed, and those of living ones stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from reshard.storage.local import own_folder as module
from reshard.storage.local.own_folder import PREFIX, YOUNG_SECONDS, own_folder

KEEPS = """
from reshard.storage.local.own_folder import own_folder
made = own_folder()
print(made.name, flush=True)
input()
"""


def make_old(folder: Path) -> None:
    then = time.time() - YOUNG_SECONDS - 1
    os.utime(folder, (then, then))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, in which nobody has looked yet."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    module._remove_left.cache_clear()
    return tmp_path


def test_those_of_killed_processes_are_removed(temporary: Path) -> None:
    told = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", KEEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told.append((process, Path(process.stdout.readline().strip())))
    (killed, left), (alive, kept) = told
    killed.kill()
    killed.wait()
    (left / "config.json").write_text("{}")
    make_old(left)
    make_old(kept)
    young, other = temporary / f"{PREFIX}young", temporary / f"{PREFIX}link"
    young.mkdir()
    other.symlink_to(temporary / "elsewhere")
    with own_folder() as mine:
        assert {*temporary.iterdir()} == {kept, young, other, Path(mine)}
    make_old(young)
    with own_folder():
        assert young.exists()  # it is looked for once in a process
    module._remove_left.cache_clear()
    with own_folder():
        assert not young.exists() and kept.exists()
    alive.communicate("\n")
    assert not kept.exists()
