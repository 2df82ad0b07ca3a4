"""Two runs to one target: one does it. One that stood still while another took over changes nothing that is published.

The runs are processes. Those that stand still are stopped (SIGSTOP) at a request; the others believe that they are on another
host, and take over once the lease has not been renewed for a second and a half.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import IncompleteCheckpointError
from tests.campaigns import every, singly
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call
from tests.robustness.buckets.cases import (
    CASES,
    SERVERS,
    TARGET,
    convert,
    emptied,
    files_of,
    is_taken_for_one,
    keys,
    nothing_is_left,
)
from tests.robustness.buckets.children import (
    ENDING_S,
    Awaited,
    Child,
    on_another_host,
    patient,
    patient_on_another_host,
    quick_leases,
    start,
)

EVERY = every(31)
"""So many requests apart are those at which a run is stopped; fewer in a campaign."""

LOST = "TargetBusyError: "


class Stopped:
    """A run that stands still at a request, of which the store has done what it asks, or has not yet."""

    def __init__(
        self, bucket: Bucket, source: Path, case: str, *, done: bool, operation: str = "", key: str = "", nth: int = 1,
        prepare: Callable[[], None] = on_another_host,
    ) -> None:  # fmt: skip
        self._is_stopped = threading.Event()
        self._is_over = threading.Event()
        self._awaited = Awaited()
        fault = Call(self._stop, done=done)
        bucket.emulator.faults.add(fault, operation=operation, key=key, nth=nth)
        self._child = run(bucket, source, case, prepare)
        self._awaited.is_this(self._child)

    def _stop(self) -> None:
        self._awaited.send(signal.SIGSTOP)
        self._is_stopped.set()
        assert self._is_over.wait(ENDING_S)

    def wait(self) -> None:
        assert self._is_stopped.wait(ENDING_S)

    def store_goes_on(self) -> None:
        """The store does the request, or answers it."""
        self._is_over.set()

    def answer(self) -> str:
        """Lets it go on; how it ended."""
        self._is_over.set()
        self._awaited.send(signal.SIGCONT)
        return self._child.answer()

    def kill(self) -> None:
        self._is_over.set()
        self._awaited.kill()


def run(
    bucket: Bucket, source: Path, case: str, prepare: Callable[[], None] = on_another_host, **more: object
) -> Child:  # fmt: skip
    return start(
        bucket.environment, source, f"{bucket.url}/{TARGET}", {**CASES[case], **more}, prepare
    )


def published(bucket: Bucket) -> dict[str, int]:
    """Each object of the target and its generation, which changes with every put."""
    held = bucket.emulator.objects.bucket(bucket.name).objects
    return {k: o.generation for k, o in held.items() if k.startswith(f"{TARGET}/")}


def moments(requests: int, first: int) -> Iterator[int]:
    return iter(range(1 + first % EVERY, requests + 1, EVERY))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("bucket", "case"), singly(SERVERS, [*CASES]), indirect=["bucket"])
def test_a_run_that_stood_still_changes_nothing_that_is_published(
    case: str, bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    convert(bucket, tiny, case)
    requests = bucket.emulator.log.count()
    expected = files_of(bucket, tmp_path / "undisturbed")
    first = 5 * list(CASES).index(case) + 3 * (bucket.scheme == "gs")
    for number in moments(requests, first):
        where = f"request {number} of {requests}"
        emptied(bucket)
        prepare = on_another_host if number % 3 else quick_leases
        stopped = Stopped(bucket, tiny, case, done=bool(number % 2), nth=number, prepare=prepare)
        stopped.wait()
        other = run(bucket, tiny, case, prepare).answer()
        assert other in ("done", "already done"), where
        before = published(bucket)
        told = stopped.answer()
        # One that stood still before it had the lease, or after it had published, has nothing to tell.
        assert told in ("done", "already done") or told.startswith(LOST), where
        # The late end of an upload puts the same bytes again, and an unfinished mark that comes late does not count.
        after = published(bucket)
        new = {key for key in after if after[key] != before.get(key)}
        late = "model-" if (bucket.scheme, case) == ("gs", "parts") else "unfinished"
        assert before.keys() <= after.keys(), where
        assert all("unfinished" in key or late in key for key in new), where
        assert is_taken_for_one(bucket, tiny), where
        assert convert(bucket, tiny, case).already_done, where
        assert files_of(bucket, tmp_path / str(number)) == expected, where
        nothing_is_left(bucket)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("bucket", "is_sent", "end"),
    singly(SERVERS, [False, True], ["goes on", "is killed"]),
    indirect=["bucket"],
)
def test_a_marker_that_comes_late_does_not_count(
    is_sent: bool, end: str, bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    """A run stands still between its last renewal and its marker, while another one has the target and is not done.

    Where it stands still as it looks at all objects, right before the marker, it finds out before it puts that.
    """
    convert(bucket, tiny, "raw")
    looks = bucket.emulator.log.count("list")
    expected = files_of(bucket, tmp_path / "undisturbed")
    emptied(bucket)
    marker, last = f"{TARGET}/commit_success.txt", f"{TARGET}/_CHECKPOINT_METADATA"
    moment: dict[str, Any] = {"operation": "list", "nth": looks, "done": True}
    if is_sent:
        moment = {"operation": "put", "key": f"{marker}$", "done": False}
    first = Stopped(bucket, tiny, "raw", **moment)
    first.wait()
    assert last in keys(bucket)
    assert marker not in keys(bucket)
    second = Stopped(bucket, tiny, "raw", done=True, operation="put", key="_METADATA$")
    second.wait()
    if end == "is killed":
        second.kill()
    told = first.answer()
    assert told.startswith(f"{LOST}this run lost {bucket.url}/{TARGET}: another run took"), told
    assert (marker in keys(bucket)) == is_sent
    with pytest.raises(IncompleteCheckpointError, match=r"has reshard_unfinished\.txt but no commit_success\.txt that counts: a run of reshard is writing it, or was interrupted"):  # fmt: skip
        reshard.inspect(f"{bucket.url}/{TARGET}")
    assert not reshard.is_checkpoint(f"{bucket.url}/{TARGET}")
    if end == "goes on":
        assert second.answer() == "done"
    else:
        assert run(bucket, tiny, "raw").answer() == "done"
    assert is_taken_for_one(bucket, tiny)
    assert files_of(bucket, tmp_path / "at last") == expected
    nothing_is_left(bucket)


@pytest.mark.usefixtures("_small")
def test_the_last_request_of_an_upload_comes_late(
    bucket: Bucket, tiny: Path, tmp_path: Path
) -> None:
    """It stood before the store while another run did everything. On S3 that run has aborted the upload."""
    convert(bucket, tiny, "parts")
    expected = files_of(bucket, tmp_path / "undisturbed")
    emptied(bucket)
    stopped = Stopped(bucket, tiny, "parts", done=False, operation="complete_upload")
    stopped.wait()
    assert run(bucket, tiny, "parts").answer() == "done"
    before = published(bucket)
    told = stopped.answer()
    assert told.startswith(LOST), told
    if bucket.scheme == "s3":
        assert published(bucket) == before
    assert not bucket.emulator.uploads.unfinished
    assert files_of(bucket, tmp_path / "at last") == expected
    assert is_taken_for_one(bucket, tiny)
    nothing_is_left(bucket)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("bucket", "what", "prepare"),
    singly(
        SERVERS,
        ["anew", "left by a run that was killed", "over another"],
        [patient, patient_on_another_host],
    ),
    indirect=["bucket"],
)
def test_of_two_runs_one_does_it(
    what: str, prepare: Callable[[], None], bucket: Bucket, tiny: Path
) -> None:
    more: dict[str, object] = {}
    if what == "over another":
        convert(bucket, tiny, "zstd")
        more = {"overwrite": True}
    elif what != "anew":
        killed = Stopped(bucket, tiny, "raw", done=True, operation="put", key="_METADATA$")
        killed.wait()
        killed.kill()
    meet = threading.Barrier(2)
    bucket.emulator.faults.add(
        Call(lambda: meet.wait(ENDING_S)), operation="put", key="partial/lease$", times=2
    )
    runs = [run(bucket, tiny, "raw", prepare, **more) for _ in range(2)]
    told = sorted(one.answer() for one in runs)
    done = [text for text in told if text in ("done", "already done")]
    assert done, told
    for text in told:
        assert text in done or text.startswith(f"{LOST}another run (process "), told
    assert is_taken_for_one(bucket, tiny)
    nothing_is_left(bucket)


@pytest.mark.usefixtures("_small")
def test_of_many_runs_none_spoils_another(bucket: Bucket, tiny: Path, tmp_path: Path) -> None:
    convert(bucket, tiny, "parts")
    expected = files_of(bucket, tmp_path / "undisturbed")
    emptied(bucket)
    runs = [run(bucket, tiny, "parts", quick_leases) for _ in range(4)]
    told = [one.answer() for one in runs]
    assert "done" in told
    refused = (
        LOST,
        "TargetExistsError: ",
    )  # the second where another one publishes in this very moment
    for text in told:
        assert text in ("done", "already done") or text.startswith(refused), told
    assert files_of(bucket, tmp_path / "at last") == expected
    assert is_taken_for_one(bucket, tiny)
    nothing_is_left(bucket)
