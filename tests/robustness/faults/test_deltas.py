"""Every place where a call of ``delta`` or ``apply`` may fail: a clear error, nothing of the target, and the same again gives the same bytes."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.checkpoint_files import files_of
from tests.delta_layout import bytes_of, changed, write_delta, write_full
from tests.emulators.buckets import Bucket
from tests.robustness.faults import faults
from tests.robustness.faults.disturbed import PUBLISHED
from tests.robustness.faults.faults import Counting, Failing, Fault
from tests.robustness.faults.power import Disk
from tests.robustness.faults.seam import Call, Go, at_the_seam
from tests.robustness.faults.trial import attempt, is_clear

LIKE = {f"t{n}": np.arange(4000 + n, dtype="f4") for n in range(3)}
STATES = [bytes_of(LIKE)]
STATES.append(changed(STATES[0], 0.05, 1))
STATES.append(changed(STATES[1], 0.05, 2))
TARGETS = {"delta": "published/weight_v000001", "apply": "served"}


def make_delta(work: Path) -> object:
    return reshard.delta(
        work / "v0", work / "v1", work / TARGETS["delta"], encoding="overwrite", file_bytes=10, workers=1,
    )  # fmt: skip


def apply(work: Path) -> object:
    deltas = [work / f"weight_v{number:06d}" for number in (1, 2)]
    return reshard.apply(work / "v0", deltas, work / TARGETS["apply"], workers=1)


ACTS: dict[str, Callable[[Path], object]] = {"delta": make_delta, "apply": apply}
CASES = [
    ("delta", faults.FULL_DISK),
    ("delta", faults.WRITE_ERROR),
    ("delta", faults.READ_ERROR),
    ("apply", faults.FULL_DISK),
    ("apply", faults.READ_ERROR),
]
"""``apply`` writes as ``convert`` does, whose tests have all reasons."""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Two full versions and two deltas, and nothing else."""
    folder = tmp_path / "work"
    for number in (0, 1):
        write_full(folder / f"v{number}", STATES[number], LIKE)
        write_delta(folder, number + 1, STATES[number], STATES[number + 1])
    return folder


def clear(work: Path, what: str) -> None:
    target = work / TARGETS[what]
    for folder in (target, target.with_name(f".{target.name}.reshard-partial")):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(("what", "fault"), CASES, ids=str)
def test_every_place_where_a_call_may_fail(what: str, fault: Fault, work: Path) -> None:
    """The last call of each place, so that much is done before; of what ``apply`` reads, those of deltas."""
    ACTS[what](work)  # loads all code that is loaded when it is needed
    clear(work, what)
    counting = Counting()
    assert attempt(work, counting, lambda: ACTS[what](work)) is None
    expected = files_of(work / TARGETS[what])
    clear(work, what)
    concerned = [call for call in counting.calls if call.kind in fault.kinds]
    last = {
        (call.kind, call.site[:1]): number
        for number, call in enumerate(concerned)
        if (what, fault) != ("apply", faults.READ_ERROR) or "weight_v" in call.path
    }
    outcomes = [
        outcome(what, work, Failing(fault, number), expected) for number in sorted(last.values())
    ]
    assert outcomes.count("refused") > len(outcomes) / 2


def outcome(what: str, work: Path, failing: Failing, expected: dict[str, bytes]) -> str:
    """Fails a call, then lets it run: the same bytes in the end, and no other name beside the target."""
    target = work / TARGETS[what]
    error = attempt(work, failing, lambda: ACTS[what](work))
    struck: Call = failing.failed[0]
    about = f"{what}: {failing.fault} at {struck.kind} of {struck.path} in {struck.site}: {error}"
    if error is not None:
        assert is_clear(error, os.strerror(failing.fault.reason), str(work)), about
        if PUBLISHED not in str(error):
            assert not target.exists(), about
        again = attempt(work, Counting(), lambda: ACTS[what](work))
        assert again is None or PUBLISHED in str(error), f"{about}: again: {again}"
    assert files_of(target) == expected, about
    assert not list(target.parent.glob(".*")), about
    clear(work, what)
    return "succeeded" if error is None else "refused"


def test_a_full_disk_where_the_payloads_for_a_bucket_wait(
    s3_bucket: Bucket, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    monkeypatch.setenv("TMPDIR", str(waiting))
    versions, url = (work / "v0", work / "v1"), f"{s3_bucket.url}/weight_v000001"
    for kind in ("create", "pwrite"):
        failing = Failing(Fault(errno.ENOSPC, frozenset((kind,)), lasts=True), 0)
        with at_the_seam(waiting, failing), pytest.raises(reshard.StorageError) as error:
            reshard.delta(*versions, url)
        assert is_clear(error.value, "No space left on device", str(waiting))
        assert failing.failed
        assert not list(s3_bucket.store().list().collect())
    reshard.delta(*versions, url)
    assert not list(waiting.iterdir())


def test_after_a_power_cut_there_is_no_version_or_all_of_it(work: Path) -> None:
    target = TARGETS["delta"]
    chance = random.Random(0)
    found: set[frozenset[tuple[str, bytes]]] = set()

    def published(disk: Disk, choose: Callable[[], bool]) -> frozenset[tuple[str, bytes]]:
        left = disk.after_cut(choose)
        return frozenset((n, data) for n, data in left.items() if n == target or n.startswith(f"{target}/"))  # fmt: skip

    def cut(disk: Disk) -> None:
        for choose in (lambda: False, lambda: True, lambda: chance.random() < 0.5):
            found.add(published(disk, choose))

    disk = Disk(work)
    disk.watch = cut

    def named(call: Call, go: Go) -> object:
        """Without the file that waits without a name, which no cut leaves."""
        is_nameless = "/#" in call.path or (call.kind == "create" and Path(call.path).is_dir())
        return go() if is_nameless else disk(call, go)

    with at_the_seam(work, named):
        make_delta(work)
    last = published(disk, lambda: False)
    assert {n: data for n, data in last if n != target} == {
        f"{target}/{n}": data for n, data in files_of(work / target).items()
    }
    assert found == {frozenset(), last}
