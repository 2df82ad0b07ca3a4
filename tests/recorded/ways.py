"""The ways in which conversions are carried out, and what is recorded of each; and of any other use."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from tests.emulators import buckets
from tests.emulators.buckets import Bucket
from tests.public.buckets.uploads import upload
from tests.recorded.normal import MANIFEST, document, files_at, lines
from tests.recorded.sources import make_source
from tests.source_reads import Reads

T = TypeVar("T")

Recorded = dict[str, Any]
"""The record of one use: lists of lines by their kind, and ``files``."""

LIMITS: dict[str, Any] = {"max_memory": "64MiB", "workers": 2}
"""Named, since the defaults depend on the machine."""

ONE_WORKER: dict[str, Any] = {"workers": 1}
"""Where a run is stopped: the same tasks are done then in each run."""

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"  # noqa: S108  each record makes its own folder below
"""Memory where there is a file system of it: syncing thousands of files takes minutes on a disk that others use too."""

NEAREST = 32 << 10
"""Bytes read of a database are rounded to it: the size of its nodes and files depends on the threads' turns, by about a KiB."""

FAILED_TASKS = ("CorruptError", "VerificationError")
"""Found by one of several tasks: how much the others have read by then depends on the threads' turns."""

_WORDS = {"check": "verify"}
"""Options that have another name on the command line."""


class World(msgspec.Struct, frozen=True):
    """A temporary folder, which is the working directory, and a bucket of each cloud."""

    folder: Path
    buckets: Mapping[str, Bucket]

    def source(self, name: str) -> str:
        """The path of a source below the folder, or its URL for a name such as ``s3:raw``; made where it is not there yet."""
        where, _, path = name.rpartition(":")
        make_source(self.folder, path.partition("/")[0])
        if not where:
            return path
        bucket = self.buckets[where]
        url = f"{bucket.url}/{path}"
        if not files_at(url, bucket):
            upload(bucket, self.folder / path, path)
        return url

    def target(self, name: str) -> str:
        """The path of a new target, or its URL for a name such as ``gs:out``."""
        where, _, rest = name.rpartition(":")
        return f"{self.buckets[where].url}/{rest}" if where else f"out/{rest}"

    def files(self, target: str) -> dict[str, str]:
        """SHA-256 of each file of a target."""
        bucket = next((b for b in self.buckets.values() if target.startswith(b.url)), None)
        return files_at(target, bucket)

    def said(self, value: Any) -> dict[str, list[str]]:
        """A report as text and as JSON."""
        return {
            "text": lines(str(value), self.folder),
            "json": document(value.to_dict(), self.folder),
        }


Use = Callable[[World], Recorded]
"""One use of the library or the command, carried out and told."""


@contextlib.contextmanager
def new_world() -> Iterator[World]:
    """An empty one; the folder's path has the same length in each run, since tables are as wide as paths are long."""
    before = Path.cwd()
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="reshard-recorded-", dir=FOLDER) as name,
        buckets.fake_s3() as s3,
        buckets.fake_gcs() as gs,
    ):
        patch.setenv("COLUMNS", "200")
        lent = {"s3": _lent(s3, "s3", patch), "gs": _lent(gs, "gs", patch)}
        os.chdir(name)
        try:
            yield World(Path(name), lent)
        finally:
            os.chdir(before)


def _lent(server: Any, scheme: buckets.Scheme, patch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket(scheme, "recorded", buckets.ENVIRONMENTS[scheme](server.url), server)
    buckets.set_environment(bucket, patch)
    server.objects.create_bucket(bucket.name)
    return bucket


def command(world: World, *words: str) -> list[str]:
    """The output, the errors and the exit code of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(words))
    text = out.getvalue()
    if "--json" in words and text.startswith("{"):
        text = json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False)
    said = lines(text, world.folder)
    return [
        *said,
        *(f"stderr: {line}" for line in lines(err.getvalue(), world.folder)),
        f"exit {code}",
    ]


def refusal(world: World, call: Callable[[], Any]) -> list[str]:
    """The error that a call ends with, and its notes; says so if it does not fail."""
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  whatever it is, it is recorded
        notes = getattr(error, "__notes__", ())
        return lines("\n".join([f"{type(error).__name__}: {error}", *notes]), world.folder)
    return ["no error"]


@contextlib.contextmanager
def counted(world: World) -> Iterator[dict[str, int]]:
    """Counts the bytes that this process reads of each source's files in the block, again where it reads them again."""
    found: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        reads = Reads(patch)
        yield found
    counts: Counter[str] = Counter()
    for path, intervals in reads.intervals.items():
        if path.startswith(f"{world.folder}/"):
            source = Path(path).relative_to(world.folder).parts[0]
            counts[source] += sum(stop - start for start, stop in intervals)
    del counts["out"]  # records of runs, which are read as often as the threads' turns want it
    for source, nbytes in counts.items():
        is_database = any((world.folder / source).rglob(MANIFEST))
        found[source] = round(nbytes / NEAREST) * NEAREST if is_database else nbytes


def observed(
    world: World, call: Callable[[], T], told: Callable[[T], Mapping[str, Any]]
) -> Recorded:
    """The result of a call as ``told`` gives it, or its error; its warnings, and the bytes that it reads."""
    given: list[T] = []
    with counted(world) as read, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = refusal(world, lambda: given.append(call()))
    said = [
        f"{one.category.__name__}: {one.message}"
        for one in caught
        if one.category.__module__.startswith(
            "reshard"
        )  # others come and go with what is installed
    ]
    return {
        **(told(given[0]) if given else {"refused": error}),
        "warnings": lines("\n".join(said), world.folder),
        **({} if error[0].startswith(FAILED_TASKS) else {"read": read}),
    }


def array_text(array: np.ndarray) -> str:
    """Dtype, shape, and a digest of the row-major bytes."""
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype} {list(array.shape)} {digest}"


def words_of(world: World, options: Mapping[str, Any]) -> list[str]:
    """Options of the library as words of the command line."""
    found: list[str] = []
    for name, value in options.items():
        option = f"--{_WORDS.get(name, name).replace('_', '-')}"
        if name == "layout":
            text = json.dumps(value)
            file = world.folder / f"layout-{zlib.crc32(text.encode()):08x}.json"
            file.write_text(text)
            found += [option, file.name]
        elif value is True:
            found.append(option)
        elif isinstance(value, list):
            for one in value:
                found += [option, one if isinstance(one, str) else "=".join(one)]
        else:
            found += [option, str(value)]
    return found


def once(source: str, target: str, **options: Any) -> Use:
    """Planned, carried out by the command, once in words and once as JSON, and verified."""

    def carried_out(world: World) -> Recorded:
        src, dst = world.source(source), world.target(target)
        words = words_of(world, {**LIMITS, **options})
        planned = words_of(world, {**LIMITS, **{k: v for k, v in options.items() if k != "check"}})
        found: Recorded = {
            "plan": command(world, "plan", src, dst, *planned),
            "plan --json": command(world, "plan", src, dst, *planned, "--json"),
        }
        with counted(world) as read:
            found["convert"] = command(world, "convert", src, dst, *words)
        found["read"] = read
        found["files"] = world.files(dst)
        overwrite = [] if "overwrite" in options else ["--overwrite"]
        again = [*words, "--json", *overwrite]
        found["convert --json"] = command(world, "convert", src, dst, *again)
        if (files := world.files(dst)) != found["files"]:
            found["files of another run"] = files
        found["done already"] = command(world, "convert", src, dst, *words)[:3]
        found["verify"] = command(world, "verify", src, dst)
        return found

    return carried_out


def stopping(after: int) -> Callable[[reshard.Progress], None]:
    """Called with the progress of a run, stops it once so many tasks are done."""

    def stop(progress: reshard.Progress) -> None:
        if progress.tasks_done >= after:
            raise KeyboardInterrupt

    return stop


@contextlib.contextmanager
def single_tasks() -> Iterator[None]:
    """Each task is recorded by itself, so that a small conversion can be stopped in its middle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reshard.engine.task_stream.BATCH_TASKS", 1)
        yield


def stopped(source: str, target: str, after: int, **options: Any) -> Use:
    """Stopped once so many tasks are done, and resumed."""

    def carried_out(world: World) -> Recorded:
        src, dst = world.source(source), world.target(target)
        how = {**LIMITS, **ONE_WORKER, **options}
        with single_tasks():
            stop = stopping(after)
            error = refusal(world, lambda: reshard.convert(src, dst, progress=stop, **how))
            report = reshard.convert(src, dst, **how)
        return {"stopped": error, "report": world.said(report), "files": world.files(dst)}

    return carried_out


def in_parts(source: str, target: str, count: int, **options: Any) -> Use:
    """Each part as on a host of its own, the last one first, and the commit."""

    def carried_out(world: World) -> Recorded:
        src, dst = world.source(source), world.target(target)
        how = {**LIMITS, **options}
        found: Recorded = {}
        for number in range(count, 0, -1):
            part = f"{number}/{count}"
            found[f"part {part}"] = world.said(reshard.convert_part(src, dst, part=part, **how))
            if number == count:
                found["commit of one part"] = refusal(world, lambda: reshard.commit(dst))
        found["commit"] = world.said(reshard.commit(dst))
        return {**found, "files": world.files(dst)}

    return carried_out


def several(source: str, targets: Mapping[str, Mapping[str, Any]], after: int | None = None) -> Use:
    """Several targets from one read, planned and carried out; stopped ``after`` so many tasks and resumed."""

    def carried_out(world: World) -> Recorded:
        src = world.source(source)
        goals = [reshard.Target(world.target(name), **how) for name, how in targets.items()]
        limits: dict[str, Any] = {**LIMITS, **({} if after is None else ONE_WORKER)}
        found: Recorded = {"plan": world.said(reshard.plan_all(src, goals, **limits))}
        with single_tasks():
            if after is not None:
                how = {**limits, "progress": stopping(after)}
                found["stopped"] = refusal(world, lambda: reshard.convert_all(src, goals, **how))
            found["report"] = world.said(reshard.convert_all(src, goals, **limits))
        return found | {f"files of {n}": world.files(world.target(n)) for n in targets}

    return carried_out


def in_processes(source: str, target: str, **options: Any) -> Use:
    """In two parts, by an executor of two processes."""

    def carried_out(world: World) -> Recorded:
        src, dst = world.source(source), world.target(target)
        with ProcessPoolExecutor(2, get_context("spawn")) as executor:
            how = {**LIMITS, **options}
            report = reshard.convert(src, dst, executor=executor, parts=2, **how)
        return {"report": world.said(report), "files": world.files(dst)}

    return carried_out
