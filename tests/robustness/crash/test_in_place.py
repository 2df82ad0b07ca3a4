"""A change in place that is killed with SIGKILL at every call that changes a file, and in the middle of every write: the next call ends it."""

from __future__ import annotations

import os
import shutil
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.robustness.crash.killing import ENDING_S, PRELOADED
from tests.robustness.faults.seam import CHANGES, Call, Go, at_the_seam
from tests.robustness.in_place_case import apply_case, check_between, check_ended, prepare_case

KINDS = CHANGES | {"unlink", "rmdir"}
"""A sync changes nothing that a killed process leaves; ``faults/test_in_place.py`` cuts the power."""


class Killing:
    """A hook that kills this process at a call, in the middle of it where it writes; None only counts."""

    def __init__(self, at: int | None) -> None:
        self.count = 0
        self._at = at

    def __call__(self, call: Call, go: Go) -> Any:
        if call.kind not in KINDS:
            return go()
        self.count += 1
        if self.count - 1 != self._at:
            return go()
        if call.kind in ("write", "pwrite"):
            go(limit=max(1, len(call.arguments[1]) // 2))
        os.kill(os.getpid(), signal.SIGKILL)
        return None


def apply_killed(work: str, at: int) -> None:
    with at_the_seam(Path(work), Killing(at)):
        apply_case(Path(work))


def test_the_next_call_ends_it(tmp_path: Path) -> None:
    prepared = prepare_case(tmp_path / "prepared")
    work, counting = tmp_path / "work", Killing(None)
    shutil.copytree(prepared, work)
    with at_the_seam(work, counting):
        apply_case(work)
    check_ended(work)
    context = get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, "tests.robustness.in_place_case"])
    found = set()
    for at in range(counting.count):
        shutil.rmtree(work)
        shutil.copytree(prepared, work)
        child = context.Process(target=apply_killed, args=(str(work), at))
        child.start()
        child.join(ENDING_S)
        assert child.exitcode == -signal.SIGKILL, at
        found.add(check_between(work))
        assert apply_case(work).version == "000002"
        check_ended(work)
    assert found == {"old", "refused", "new"}
    assert counting.count > 30
