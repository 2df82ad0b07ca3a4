"""Each program in examples/ runs as a user runs it, and asserts what it shows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.warm import programs

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [programs() / "python", EXAMPLES / name],
        cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_page_lists_each_of_them() -> None:
    page = (EXAMPLES / "README.md").read_text("utf-8")
    assert [name for name in PROGRAMS if f"[{name}]({name})" not in page] == []
