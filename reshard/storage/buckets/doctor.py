"""Tests whether a bucket can do what this project needs, in a folder with a random name that it removes at the end."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from msgspec import Struct

from reshard.answers.record import Json, Record
from reshard.errors import (
    MissingPackageError,
    ReshardError,
    SourceChangedError,
    StorageError,
    TargetExistsError,
)
from reshard.storage.buckets import counts, objects
from reshard.storage.buckets.clients import new_client
from reshard.storage.buckets.clouds import CLOUDS, is_bucket_scheme, parse_url
from reshard.storage.buckets.errors import bucket_errors
from reshard.storage.buckets.store import BucketStore

OBJECT_BYTES = 8 << 20
OBJECTS = 4
"""Number and size of the objects that are written and read at once to measure the bandwidth."""

ROUND_TRIPS = 5


class BucketCheck(Record, frozen=True):
    """The result of one test.

    Attributes:
        holds: None if it could not be tried, or does not apply to this cloud.
        found: the observation, in a few words, or the error.
        follows: the consequence for this project if it does not hold.
    """

    name: str
    holds: bool | None
    found: str
    follows: str


class BucketReport(Record, frozen=True):
    """The results of all tests of a bucket. Rates are of all requests at once; None if they could not be measured.

    Attributes:
        latency_s: of the median request for a few bytes.
    """

    JSON: ClassVar[Json] = Json(
        ("url", "checks", "latency_s", "upload_bytes_per_s", "download_bytes_per_s", "is_fine")
    )

    url: str
    checks: tuple[BucketCheck, ...]
    latency_s: float | None = None
    upload_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None

    @property
    def is_fine(self) -> bool:
        """True if every test that was possible holds."""
        return not any(check.holds is False for check in self.checks)


class _Trial(Struct):
    """A folder in a bucket for tests."""

    store: BucketStore
    folder: str

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


class _DoesNotHoldError(Exception):
    """The observation that contradicts an expectation."""


class _DoesNotApplyError(Exception):
    """The reason why a test cannot be done on this cloud."""


_Try = Callable[[_Trial], str]


def check_url(url: str) -> None:
    """Raises StorageError unless it is the URL of a bucket, or of a folder in one."""
    scheme = url.partition("://")[0]
    if "://" not in url or not is_bucket_scheme(scheme):
        raise StorageError(
            f"{url!r} is no URL of a bucket; expected gs://bucket/prefix, s3://bucket/prefix or az://container/prefix"
        )


def examine_bucket(url: str) -> BucketReport:
    """Tries writing, listing, ranges, versions, conditions, parts, checksums and deletion, and measures the link.

    Sends about 50 requests, 48 MiB up and 45 MiB down. The report has the refusals of the bucket. Raises StorageError if
    ``url`` does not name a bucket.
    """
    check_url(url)
    found_scheme, bucket, key = parse_url(url)
    name = f"reshard-doctor-{secrets.token_hex(8)}"
    trial = _Trial(BucketStore(found_scheme, bucket), f"{key}/{name}" if key else name)
    checks = [_check(trial, "write", _write, "nothing can be written here; reading may work")]
    rates: tuple[float | None, ...] = (None, None, None)
    if checks[0].holds:
        try:
            checks += [_check(trial, *one) for one in _CHECKS]
            rates = _measured(trial)
        finally:
            checks.append(
                _check(
                    trial, "deletion", _remove, f"remove {trial.store.text(trial.folder)} yourself"
                )
            )
    return BucketReport(url, tuple(checks), *rates)


def _check(trial: _Trial, name: str, attempt: _Try, follows: str) -> BucketCheck:
    try:
        return BucketCheck(name, True, attempt(trial), follows)
    except _DoesNotHoldError as seen:
        return BucketCheck(name, False, str(seen), follows)
    except _DoesNotApplyError as why:
        return BucketCheck(name, None, str(why), follows)
    except MissingPackageError:
        raise
    except ReshardError as error:
        return BucketCheck(name, False, str(error), follows)


def _write(trial: _Trial) -> str:
    objects.put(trial.store, trial.path("first"), b"reshard doctor")
    return "an object was put"


def _list_at_once(trial: _Trial) -> str:
    for number in range(3):
        objects.put(trial.store, trial.path(f"listed/{number}"), b"x")
        found = len(list(trial.store.files(trial.path("listed"))))
        if found != number + 1:
            raise _DoesNotHoldError(f"{found} of {number + 1} objects were listed")
    return "objects are listed as soon as they are put"


def _half_names(trial: _Trial) -> str:
    if trial.store.status(trial.path("list")) is not None:
        raise _DoesNotHoldError("half of a folder's name is taken for a folder")
    return "a part of a name names no object"


def _ranges(trial: _Trial) -> str:
    data, path = secrets.token_bytes(1 << 20), trial.path("ranges")
    objects.put(trial.store, path, data)
    for offset, nbytes in (0, 10), (12345, 70000), ((1 << 20) - 5, 100), (1 << 20, 10):
        if trial.store.open(path).read(offset, nbytes) != data[offset : offset + nbytes]:
            raise _DoesNotHoldError(f"other bytes for {nbytes} bytes from {offset}")
    return "exactly the bytes that were asked for"


def _pinned_reads(trial: _Trial) -> str:
    path = trial.path("pinned")
    old = objects.put(trial.store, path, b"one")
    if not old:
        raise _DoesNotHoldError("objects have no ETag")
    objects.put(trial.store, path, b"two")
    try:
        trial.store.open(path, old).read(0, 3)
    except SourceChangedError:
        return "an object that was replaced is refused"
    raise _DoesNotHoldError("a version that was replaced was read all the same")


def _create_only(trial: _Trial) -> str:
    path = trial.path("created")
    objects.put_new(trial.store, path, b"one")
    try:
        objects.put_new(trial.store, path, b"two")
    except TargetExistsError:
        return "a second object of the same name is refused"
    raise _DoesNotHoldError("a second object replaced the first")


def _replace_known(trial: _Trial) -> str:
    path = trial.path("replaced")
    objects.put(trial.store, path, b"one")
    first = objects.known_version(trial.store, path)
    if first is None:
        raise _DoesNotHoldError("an object that was put is not there")
    objects.replace(trial.store, path, b"two", first)
    try:
        objects.replace(trial.store, path, b"three", first)
    except SourceChangedError:
        return "only the version that was named is replaced"
    raise _DoesNotHoldError("another version was replaced")


def _parts(trial: _Trial) -> str:
    part, path = max(CLOUDS[trial.store.scheme].least_part_bytes, 5 << 20), trial.path("parts")
    data = secrets.token_bytes(1 << 20) * 11
    objects.put_parts(trial.store, path, [data], part)
    if trial.store.open(path).read(0, len(data) + 1) != data:
        raise _DoesNotHoldError("an object in parts has other bytes")
    return "an object was put in 3 parts"


def _checksums(trial: _Trial) -> str:
    """Puts an object with a checksum of other bytes, which must be refused."""
    if not CLOUDS[trial.store.scheme].proves_uploads:
        raise _DoesNotApplyError("no checksum is sent to this cloud")
    path = trial.path("damaged")
    wrong = {"content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="}  # of no bytes
    client = new_client(trial.store.scheme, trial.store.bucket, path, wrong)
    try:
        with bucket_errors("write", trial.store.text(path)):
            counts.put(client, path, b"x", "overwrite", {})
    except StorageError as error:
        if "BadDigest" in str(error) or "InvalidDigest" in str(error):
            return "an object that arrives damaged is refused"
        raise
    raise _DoesNotHoldError("an object with a wrong checksum was taken")


def _remove(trial: _Trial) -> str:
    count = objects.delete_folder(trial.store, trial.folder)
    if left := list(trial.store.files(trial.folder)):
        raise _DoesNotHoldError(f"{len(left)} objects are still listed")
    return f"{count} objects were deleted"


_CHECKS: tuple[tuple[str, _Try, str], ...] = (
    ("listing", _list_at_once, "checkpoints may look incomplete for a while after they were written"),
    ("names", _half_names, "give the paths of checkpoints in full"),
    ("ranges", _ranges, "do not read checkpoints from here"),
    ("pinned reads", _pinned_reads, "a checkpoint that is replaced while it is read is noticed by its digests only"),
    ("create only", _create_only, "two runs that write the same checkpoint may mix it"),
    ("replace known", _replace_known, "two runs that write the same checkpoint may mix it"),
    ("parts", _parts, "only chunks that fit the memory can be written"),
    ("checksums", _checksums, "uploads that were damaged on the way are noticed only when they are read again"),
)  # fmt: skip


def _measured(trial: _Trial) -> tuple[float | None, float | None, float | None]:
    """Latency and rates; None if a request failed."""
    try:
        return _latency_s(trial), _rate(trial, _upload), _rate(trial, _download)
    except StorageError:
        return None, None, None


def _latency_s(trial: _Trial) -> float:
    times = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        trial.store.open(trial.path("first")).read(0, 10)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _rate(trial: _Trial, move: Callable[[_Trial, int], None]) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(OBJECTS) as pool:
        list(pool.map(lambda number: move(trial, number), range(OBJECTS)))
    return OBJECTS * OBJECT_BYTES / (time.perf_counter() - began)


def _upload(trial: _Trial, number: int) -> None:
    objects.put(trial.store, trial.path(f"rate/{number}"), secrets.token_bytes(OBJECT_BYTES))


def _download(trial: _Trial, number: int) -> None:
    trial.store.open(trial.path(f"rate/{number}")).fill(0, memoryview(bytearray(OBJECT_BYTES)))
