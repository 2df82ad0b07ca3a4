"""Every call to the operating system fails once, for every reason that it may have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.robustness.faults import faults
from tests.robustness.faults.cases import CASES, Case, clear, result
from tests.robustness.faults.disturbed import check_disturbed, undisturbed
from tests.robustness.faults.faults import Fault
from tests.robustness.faults.seam import Call
from tests.robustness.faults.trial import attempt

AT_EACH_SITE = (faults.FULL_DISK, faults.WRITE_ERROR, faults.READ_ERROR, faults.DENIED)
OF_EACH_KIND = (faults.QUOTA, faults.READ_ONLY, faults.STALE, faults.TOO_MANY_FILES)
"""Reasons that come by the same ways as those above and differ in the text only."""

Places = set[tuple[str, tuple[str, ...]]]


@pytest.fixture(scope="module")
def work(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, since cases clear it: what a case does undisturbed is found out once."""
    return Path(shutil.copytree(sources, tmp_path_factory.mktemp("every") / "work"))


@pytest.mark.parametrize("fault", AT_EACH_SITE, ids=str)
def test_every_place_where_a_call_may_fail(fault, work):
    """In every case, a call of each place in the code that no case before had."""
    known: Places = set()
    outcomes = [o for case in CASES for o in disturbances(case, work, fault, known)]
    assert outcomes.count("refused") > len(outcomes) / 2


def disturbances(case: Case, work: Path, fault: Fault, known: Places) -> list[str]:
    calm = undisturbed(case, work)
    concerned = [call for call in calm.calls if call.kind in fault.kinds]
    numbers = {
        n for place, ns in places(concerned).items() if place not in known for n in ns[len(ns) // 2 :][:1]}  # fmt: skip
    known.update(places(concerned))
    return [check_disturbed(case, work, fault, n, calm) for n in sorted(numbers)]


def places(calls: list[Call]) -> dict[tuple[str, tuple[str, ...]], list[int]]:
    """Numbers of the calls of each kind from each place in the code."""
    found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for number, call in enumerate(calls):
        found.setdefault((call.kind, call.site[:1]), []).append(number)
    return found


@pytest.mark.parametrize("fault", OF_EACH_KIND, ids=str)
@pytest.mark.parametrize("name", ["weave", "keep"])
def test_every_reason(fault, name, work):
    case = next(case for case in CASES if case.name == name)
    calm = undisturbed(case, work)
    kinds = [call.kind for call in calm.calls if call.kind in fault.kinds]
    for kind in sorted(set(kinds)):
        check_disturbed(case, work, fault, len(kinds) - 1 - kinds[::-1].index(kind), calm)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_short_reads_and_writes_are_continued(case, work):
    calm = undisturbed(case, work)
    assert attempt(work, faults.short, lambda: case.run(work)) is None
    if case.is_ours:
        assert result(work) == calm.made
    clear(work)


@pytest.mark.parametrize("name", ["block", "save"])
def test_every_single_write(name, work):
    """The disk is full from the n-th write on, for every n."""
    case = next(case for case in CASES if case.name == name)
    calm = undisturbed(case, work)
    writes = Fault(faults.FULL_DISK.reason, frozenset(("pwrite", "write")), lasts=True)
    count = sum(call.kind in writes.kinds for call in calm.calls)
    for n in range(count):
        assert check_disturbed(case, work, writes, n, calm) == "refused"
