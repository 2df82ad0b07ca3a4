"""Runs tests in the copied tree and tells whether a test failed, which is more than that the run did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

MOST_S = 300
"""A run of a few quick tests that takes longer hangs."""

_PLUGINS = ("-p", "xdist", "-p", "timeout")
"""Only those that the settings of pytest name: to load all that are installed takes longer than most of these tests."""

_FAILED = re.compile(r"^FAILED (\S+\.py::.*?)(?: - .*)?$", re.MULTILINE)


class Trial(Struct, frozen=True):
    """What a run of tests showed.

    Attributes:
        code: exit code of pytest; None where it was ended after ``MOST_S``.
        failed: ids of the tests whose own code failed; one whose fixture failed is none.
        output: of pytest.
    """

    code: int | None
    failed: tuple[str, ...]
    seconds: float
    output: str

    @property
    def has_caught(self) -> bool:
        """Whether a test failed. An error of collection, or a run without tests, has another exit code."""
        return self.code == 1 and bool(self.failed)


def run_tests(root: Path, tests: Sequence[str]) -> Trial:
    """Runs these tests in the tree at ``root``, up to the first that fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-rf",
        "-p",
        "no:cacheprovider",
        *_PLUGINS,
        *tests,
    ]
    # Before the tree that is installed, also in processes that tests start.
    path = os.pathsep.join([str(root), str(root / "server")])
    variables = {
        **os.environ,
        "PYTHONPATH": path,
        "COLUMNS": "1000",
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=variables,
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        return Trial(None, (), time.monotonic() - started, output)
    seconds = time.monotonic() - started
    return Trial(
        done.returncode, tuple(_FAILED.findall(done.stdout)), seconds, done.stdout + done.stderr
    )
