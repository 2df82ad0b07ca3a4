"""Every request of a conversion to a bucket may fail: the same bytes come out, or one clear error after which the same works.

A sample of the requests and of what happens to them; ten times as many in a campaign.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reshard.errors import ReshardError
from tests.campaigns import every, pairwise
from tests.emulators.apis import error_answers as answers
from tests.emulators.buckets import Bucket
from tests.emulators.faults import (
    BreakAnswer,
    BreakUpload,
    Delay,
    Disconnect,
    DoLater,
    DoTwice,
    Fault,
    Flip,
    Hang,
    Refuse,
)
from tests.robustness.buckets.cases import (
    CASES,
    SERVERS,
    convert,
    emptied,
    files_of,
    is_taken_for_one,
    nothing_is_left,
)

EVERY = every(137)
"""Of all pairs of a request and what happens to it, so many apart are tried; fewer in a campaign."""

SURVIVED: dict[str, Fault] = {
    "500": Refuse(answers.INTERNAL_ERROR), "503": Refuse(answers.SLOW_DOWN), "429": Refuse(answers.TOO_MANY_REQUESTS),
    "reset": Disconnect(), "no answer": Hang(), "late": Delay(0.2),
    "half an upload": BreakUpload(1000),
}  # fmt: skip
"""Once: the run goes on, but for an upload in parts whose last request gets no answer."""

DOUBTED: dict[str, Fault] = {
    "half an answer": BreakAnswer(20), "403": Refuse(answers.ACCESS_DENIED), "404": Refuse(answers.NO_SUCH_KEY), "412": Refuse(answers.PRECONDITION_FAILED),
    "expired": Refuse(answers.EXPIRED_TOKEN), "lost": Disconnect(done=True), "done without an answer": Hang(done=True),
    "twice": DoTwice(), "later": DoLater(3), "flipped answer": Flip(150), "flipped upload": Flip(5000, upload=True),
}  # fmt: skip
"""Once: the run goes on, or ends with an error."""

LASTING: dict[str, Fault] = {
    "only 500": Refuse(answers.INTERNAL_ERROR), "only 403": Refuse(answers.ACCESS_DENIED), "only resets": Disconnect(),
}  # fmt: skip
"""From some request on: the run ends with an error, unless it was done."""

WAYS = [*SURVIVED, *DOUBTED, *LASTING]


WAITING = {"no answer": (1.0, 60.0)} | dict.fromkeys(
    ["done without an answer", *LASTING], (0.5, 1.0)
)
"""The seconds that a request has, and after which none is repeated. Where the run survives, that is more than a busy machine takes."""

LIMIT_S = 120
"""Less than the usual settings let a run wait, and much more than it takes."""


@pytest.fixture
def impatient(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Sets how long a run waits that meets this."""

    def choose(way: str) -> None:
        if way in WAITING:
            request_s, retry_s = WAITING[way]
            settings = tmp_path / "buckets.toml"
            settings.write_text(
                f'["{bucket.url}"]\nrequest_timeout_s = {request_s}\nretry_timeout_s = {retry_s}\n'
            )
            monkeypatch.setenv("RESHARD_BUCKETS", str(settings))

    return choose


def sample(requests: int, first: int) -> Iterator[tuple[int, str]]:
    pairs = itertools.product(range(1, requests + 1), WAYS)
    return itertools.islice(pairs, first % EVERY, None, EVERY)


def disturb(bucket: Bucket, number: int, way: str) -> None:
    fault = {**SURVIVED, **DOUBTED, **LASTING}[way]
    bucket.emulator.faults.add(fault, nth=number, times=None if way in LASTING else 1)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("bucket", "case", "over"), pairwise(SERVERS, [*CASES], [False, True]), indirect=["bucket"]
)
def test_what_happens_to_a_request(
    case: str, over: bool, bucket: Bucket, tiny: Path, tmp_path: Path, impatient: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    options = {"overwrite": True} if over else {}

    def prepare() -> None:
        emptied(bucket)
        if over:
            convert(bucket, tiny, next(other for other in CASES if other != case))
            bucket.emulator.log.clear()

    prepare()
    convert(bucket, tiny, case, **options)
    requests = bucket.emulator.log.count()
    expected = files_of(bucket, tmp_path / "undisturbed")
    first = 31 * list(CASES).index(case) + 13 * (bucket.scheme == "gs") + 7 * over
    for number, way in sample(requests, first):
        where = f"request {number} of {requests}: {way}"
        prepare()
        disturb(bucket, number, way)
        impatient(way)
        began = time.monotonic()
        try:
            convert(bucket, tiny, case, **options)
        except ReshardError as error:
            assert way not in SURVIVED or (case, way) == ("parts", "no answer"), (where, error)
            assert bucket.url in str(error), where
            assert "\n" not in str(error), where
            is_done = False
        else:
            is_done = True
        assert time.monotonic() - began < LIMIT_S, where
        bucket.emulator.faults.clear()
        monkeypatch.delenv("RESHARD_BUCKETS", raising=False)
        if not is_done:
            is_taken_for_one(bucket, tiny)
            convert(bucket, tiny, case, **options)
        assert convert(bucket, tiny, case).already_done, where
        assert files_of(bucket, tmp_path / f"{number} {way}") == expected, where
        nothing_is_left(bucket)
