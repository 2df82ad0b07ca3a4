"""Failing calls and power cuts while a folder is changed in place: the old version, the new one or a refusal, and the next call ends it."""

from __future__ import annotations

import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.storage.local import in_place
from tests.robustness.faults import faults
from tests.robustness.faults.faults import Counting, Failing, Fault, short
from tests.robustness.faults.power import Disk
from tests.robustness.faults.seam import at_the_seam
from tests.robustness.faults.trial import attempt, is_clear
from tests.robustness.in_place_case import apply_case, check_between, check_ended, prepare_case

MOST = 30
"""Most places of which a call fails."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_case(tmp_path_factory.mktemp("in-place") / "prepared")


def anew(prepared: Path, work: Path) -> Path:
    shutil.rmtree(work, ignore_errors=True)
    return Path(shutil.copytree(prepared, work))


@pytest.mark.parametrize(
    "fault", [faults.FULL_DISK, faults.WRITE_ERROR, faults.READ_ERROR, faults.DENIED], ids=str
)
def test_after_any_failing_call_the_next_one_ends_it(
    fault: Fault, prepared: Path, tmp_path: Path
) -> None:
    """A call of each place in the code, or of an even sample of them."""
    work, counting = anew(prepared, tmp_path / "work"), Counting()
    assert attempt(work, counting, lambda: apply_case(work)) is None
    check_ended(work)
    concerned = [call for call in counting.calls if call.kind in fault.kinds]
    places = {(call.kind, call.site[:1]): number for number, call in enumerate(concerned)}
    found = []
    for number in sorted(places.values())[:: 1 + len(places) // MOST]:
        anew(prepared, work)
        failing = Failing(fault, number)
        error = attempt(work, failing, lambda: apply_case(work))
        call = failing.failed[0]
        if error is not None:
            assert is_clear(error, os.strerror(fault.reason), str(work)), f"{call}: {error}"
            found.append(check_between(work))
            apply_case(work)
        check_ended(work)
    assert {"old", "refused"} <= set(found)


def test_short_reads_and_writes_are_continued(prepared: Path, tmp_path: Path) -> None:
    work = anew(prepared, tmp_path / "work")
    assert attempt(work, short, lambda: apply_case(work)) is None
    check_ended(work)


def after_cuts(prepared: Path, work: Path, chances: tuple[float, ...]) -> list[dict[str, bytes]]:
    """What may be found after a power cut at every moment."""
    anew(prepared, work)
    disk, chance = Disk(work), random.Random(0)
    found: list[dict[str, bytes]] = []

    def cut(disk: Disk) -> None:
        found.extend(disk.after_cut(partial(lost, chance, rate)) for rate in chances)

    disk.watch = cut
    with at_the_seam(work, disk):
        apply_case(work)
    check_ended(work)
    return found


def lost(chance: random.Random, rate: float) -> bool:
    return chance.random() < rate


def restored(work: Path, state: dict[str, bytes]) -> None:
    shutil.rmtree(work)
    work.mkdir()
    for name, data in state.items():
        (work / name).mkdir() if data == b"folder" else (work / name).write_bytes(data)


def test_after_a_power_cut_the_next_call_ends_it(prepared: Path, tmp_path: Path) -> None:
    """Whatever of what was not synced the device had: the bytes of a file and each rename by itself."""
    work, seen = tmp_path / "work", set()
    states = after_cuts(prepared, work, (0, 0.5, 1))
    for state in random.Random(1).sample(states, 40):
        restored(work, state)
        seen.add(check_between(work))
        apply_case(work)
        check_ended(work)
    assert seen == {"old", "refused", "new"}


def test_the_cuts_find_what_is_not_synced(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its syncs a change in place would be lost: these tests can fail."""
    monkeypatch.setattr(in_place, "fsync", lambda _: None)
    wrong: list[Any] = []
    work = tmp_path / "work"
    for state in after_cuts(prepared, work, (0.5,)):
        restored(work, state)
        try:
            check_between(work)
            apply_case(work)
            check_ended(work)
        except (AssertionError, reshard.ReshardError) as error:
            wrong.append(error)
            break
    assert wrong
