"""Runs code in a fresh process, measured by the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

# A child's peak RSS begins with that of the process it was forked from, so that a small process
# stands between this one, which has jax loaded, and the one that is measured.
_LAUNCH = """
    import os, subprocess, sys
    child = subprocess.Popen(sys.argv[1:])
    _, status, usage = os.wait4(child.pid, 0)
    print(usage.ru_maxrss)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class Outcome:
    """What the code printed (JSON on one line), and the peak of its resident memory in bytes."""

    printed: Any
    peak_bytes: int


def run_fresh(code: str, *args: str) -> Outcome:
    """Runs Python ``code`` with ``sys.argv[1:]`` as given; it must succeed."""
    inner = [sys.executable, "-c", textwrap.dedent(code), *args]
    outer = [sys.executable, "-S", "-c", textwrap.dedent(_LAUNCH), *inner]
    usual = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}  # of the tests
    done = subprocess.run(
        outer, stdout=subprocess.PIPE, text=True, check=True, timeout=300, env=usual
    )
    *printed, peak = done.stdout.splitlines()
    return Outcome(json.loads(printed[0]) if printed else None, int(peak) << 10)
