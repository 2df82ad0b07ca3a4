"""The command in a process of its own: what it loads, closed streams and pipes, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.campaigns import rarely, singly

ROOT = Path(__file__).parents[2]


MODULES = (
    "inspection", "conversion", "deltas", "merging", "rules", "targets", "verification", "identity", "serve", "view", "jobs", "demo",
)  # fmt: skip
"""Every module of ``reshard.cli.commands``."""


def fresh(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "server")])
    env = os.environ | {"PYTHONPATH": paths} | environment
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, env=env, check=False, cwd=ROOT
    )


def test_help_loads_nothing_heavy_and_is_quick() -> None:
    code = (
        "import sys\nfrom reshard.cli.app import run\nrun(['--help'])\n"
        "heavy = {'jax', 'tensorstore', 'torch', 'tensorflow', 'numpy', 'orbax', 'yaml'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)), 'rich.table' in sys.modules)\n"
        "print(len(sys.modules))"
    )
    done = fresh("-c", code)
    assert "loaded: []" in done.stdout
    assert int(done.stdout.splitlines()[-1]) < 700  # it takes as long as to load these


@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        (["layout", "--help"], ["inspection"]),
        (["--help"], MODULES),
        (["convrt"], MODULES),
    ],
)
def test_only_the_command_that_is_asked_for_is_loaded(
    words: list[str], loaded: Collection[str]
) -> None:
    code = (
        "import json, sys\n"
        "from reshard.cli.app import run\n"
        f"run({words!r})\n"
        "print(json.dumps([m for m in sys.modules if m.startswith('reshard.cli.commands.')]))"
    )
    found = json.loads(fresh("-c", code).stdout.splitlines()[-1])

    assert sorted(found) == sorted(f"reshard.cli.commands.{name}" for name in loaded)


def test_an_ascii_terminal_gets_no_traceback(tmp_path: Path) -> None:
    done = fresh("-m", "reshard", "inspect", str(tmp_path / "größe"), PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "gr\\xf6\\xdfe" in done.stderr


@pytest.mark.parametrize("closed", rarely(["<&- >&- 2>&-", ">&-", "2>&-", ">&- 2>&-"], 2))
def test_closed_streams_get_no_traceback_and_no_file_their_numbers(
    tmp_path: Path, closed: str
) -> None:
    reshard.save(tmp_path / "a", {"w": np.arange(64.0)})
    command = f"{sys.executable} -m reshard convert {tmp_path}/a {tmp_path}/b --mesh x=2 {closed}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert reshard.verify(tmp_path / "a", tmp_path / "b").differences == 0


def in_bash(command: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which ``reshard`` is this one; the exit code is the first command's."""
    line = f'reshard() {{ {sys.executable} -m reshard "$@"; }}; {command}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints that differ."""
    folder = tmp_path_factory.mktemp("two")
    reshard.save(folder / "a", {f"w{i}": np.arange(64.0) for i in range(200)})
    reshard.save(folder / "b", {f"w{i}": np.arange(64.0) + (i == 7) for i in range(200)})
    return folder


CODES = {
    "inspect {0}/a": 0,
    "plan {0}/a {0}/none --mesh x=2": 0,
    "layout {1} {0}/a": 0,
    "verify {0}/a": 0,
    "verify {0}/a {0}/b": 3,
    "inspect {0}/missing": 1,
}


@pytest.mark.parametrize(
    ("command", "reader", "how"),
    singly([*CODES], ["true", "head -1"], ["", " --json", " --all"]),
)
def test_a_reader_that_closes_the_pipe_changes_no_exit_code(
    two: Path, tmp_path: Path, command: str, reader: str, how: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("mesh: {axes: [x], shape: [2]}\nrules: [{match: w, axes: [x]}]\n")
    done = in_bash(f"reshard {command.format(two, file)}{how} | {reader}")
    assert done.returncode == CODES[command], done.stderr
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


@pytest.mark.parametrize("pipe", rarely(["2>&1 | true", "--json | true", "| true"], 2))
def test_a_conversion_survives_a_closed_pipe(two: Path, tmp_path: Path, pipe: str) -> None:
    done = in_bash(f"reshard convert {two}/a {tmp_path}/out --mesh x=2 {pipe}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert reshard.verify(two / "a", tmp_path / "out").differences == 0


def test_a_closed_pipe_is_quiet() -> None:
    done = in_bash("reshard convert --help | head -1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["", " --json"])
def test_an_answer_that_cannot_be_written_is_a_failure(two: Path, how: str) -> None:
    done = in_bash(f"reshard inspect {two}/a{how} > /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write to 'stdout': No space left on device; free")
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_with_130() -> None:
    code = (
        "import os, signal, time, reshard\n"
        "def slow(*_, **__):\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(30)\n"
        "reshard.convert = slow\n"
        "import sys\nsys.argv = ['reshard', 'convert', 'a', 'b']\n"
        "from reshard.cli import main\nmain()"
    )
    done = fresh("-c", code)
    assert done.returncode == 128 + signal.SIGINT
    assert "running the same command again starts over" in done.stderr
    assert "Traceback" not in done.stderr
