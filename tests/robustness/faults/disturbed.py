"""Disturbs a case once and checks the outcome, for any call and any reason."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reshard.errors import ReshardError, TargetExistsError
from tests.robustness.faults.cases import Case, clear, result
from tests.robustness.faults.faults import Counting, Failing, Fault
from tests.robustness.faults.seam import Call
from tests.robustness.faults.trial import attempt, is_clear

PUBLISHED = "is published and complete, but may be lost in a power failure"


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a case does and makes when nothing fails."""

    calls: list[Call]
    made: dict[str, bytes]


@cache
def undisturbed(case: Case, work: Path) -> Undisturbed:
    counting = Counting()
    assert attempt(work, counting, lambda: case.run(work)) is None
    made = result(work)
    clear(work)
    return Undisturbed(counting.calls, made)


def check_disturbed(case: Case, work: Path, fault: Fault, nth: int, calm: Undisturbed) -> str:
    """Disturbs the case, then lets it run; what came of it. AssertionError where that is not as promised.

    Either the run succeeds with the bytes of an undisturbed one, or it ends with an error that says
    where, why and what to do; then nothing is to be seen of the target, and the same again gives
    those bytes.
    """
    failing = Failing(fault, nth)
    error = attempt(work, failing, lambda: case.run(work))
    assert failing.failed, f"call {nth} never came"
    about = (
        f"{case.name}: {fault} at call {nth}, {failing.failed[0].kind} in {failing.failed[0].site}"
    )
    try:
        if error is not None:
            _check_refused(error, fault, work, about)
            again = attempt(work, Counting(), lambda: case.run(work))
            # A save does not know its own target again, which is whole all the same.
            known = PUBLISHED in str(error) and isinstance(again, TargetExistsError)
            assert again is None or known, f"{about}: again: {again}"
        assert _same(case, result(work), calm.made), f"{about}: other bytes"
    finally:
        clear(work)
    return "succeeded" if error is None else "refused"


def _check_refused(error: ReshardError, fault: Fault, work: Path, about: str) -> None:
    assert is_clear(error, os.strerror(fault.reason), str(work)), f"{about}: {error}"
    if PUBLISHED not in str(error):
        assert not (work / "dst").exists(), f"{about}: {error}"


def _same(case: Case, found: dict[str, bytes], expected: dict[str, bytes]) -> bool:
    """A database's own files have names and times of their own; the digests of tensors in slices.json are compared."""
    if case.is_ours:
        return found == expected
    names = [name for name in expected if name.endswith("slices.json")]
    return bool(names) and all(
        name in found and _tensors(found[name]) == _tensors(expected[name]) for name in names
    )


def _tensors(slices: bytes) -> bytes:
    return slices[: slices.index(b'"files": ')]
