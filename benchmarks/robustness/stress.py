"""Random conversions in parallel threads and processes, some of which fail: equality and leaks are checked.

    python -m benchmarks.robustness.stress --minutes 8

Every conversion that ends well is compared with the source by stock numbers (the digests that numpy's
bytes give), every one that fails must leave neither target nor staging folder (unless it may be
continued). What the process holds is compared before and after, and its memory over the run.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import reshard
from reshard.errors import ReshardError
from tests.robustness.leaks import held, nothing_leaks

THREADS = 6
PROCESSES = 2
SHAPES = [(512, 384), (1000, 72), (64, 33, 20), (7,), (), (300, 1, 200), (2048, 256)]
DTYPES = ["float32", "bfloat16", "int8", "float64"]


class CancelledError(Exception):
    """What a progress callback raises here."""


def make_sources(folder: Path) -> list[tuple[Path, dict[str, str]]]:
    """Some checkpoints in different chunks and codecs, each with the digests of its tensors."""
    from reshard.formats.slices.slice_file import digest_of

    rng, sources = np.random.default_rng(0), []
    tree = {f"t{i}": _values(rng, shape, i) for i, shape in enumerate(SHAPES)}
    digests = {name: digest_of(np.ascontiguousarray(a).tobytes()) for name, a in tree.items()}
    reshard.save(folder / "plain", tree)
    sources.append((folder / "plain", digests))
    for number, (axes, codec) in enumerate(
        [(["x"], "none"), ([None, "x"], "zstd"), (["x"], "blosc"), (["x"], "gzip")]
    ):
        path = folder / f"source{number}"
        reshard.convert(
            folder / "plain", path, layout=_layout(axes, 4), compression=codec, chunk_bytes=64 << 10
        )
        sources.append((path, digests))
    return sources


def _values(rng: np.random.Generator, shape: tuple[int, ...], number: int) -> np.ndarray:
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, DTYPES[number % 4], DTYPES[number % 4]))
    found = (rng.normal(size=shape) * 50).astype(dtype)
    if shape and shape[0] > 4:
        found[: shape[0] // 3] = 0
    return found


def _layout(axes: list[Any], parts: int) -> dict[str, Any]:
    rules = [{"match": "t[016]$", "axes": axes}]
    return {"mesh": {"axes": ["x"], "shape": [parts]}, "rules": rules, "unmatched": "replicate"}


def convert_once(number: int, seed: int, folder: Path, sources: list[Any]) -> str:
    """One random conversion; what became of it. AssertionError where anything is wrong."""
    pick = random.Random(seed * 1_000_003 + number)  # noqa: S311  repeatable, not secret
    source, digests = pick.choice(sources)
    target = folder / f"out{os.getpid()}-{number}"
    options: dict[str, Any] = {
        "layout": _layout(pick.choice([["x"], [None, "x"]]), pick.choice([1, 2])),
        "compression": pick.choice(["none", "none", "zstd", "keep", "blosc", "gzip"]),
        "ocdbt": pick.random() < 0.15,
        "check": pick.choice(["written", "written", "readback"]),
        "workers": pick.choice([1, 2, 4]),
        "chunk_bytes": pick.choice([16 << 10, 256 << 10, 8 << 20]),
        "max_memory": pick.choice(["64MiB", "256MiB"]),
    }
    if pick.random() < 0.15:
        options["progress"] = _cancelling(pick.randrange(1, 30))
    try:
        report = reshard.convert(source, target, **options)
    except (CancelledError, ReshardError) as error:
        assert not target.exists(), f"{target} is there after {error!r}"
        if isinstance(error, ReshardError):
            assert re.search("No space left|made to fail", str(error)), error
        return type(error).__name__
    assert all(t.source_digest in (None, digests[t.source]) for t in report.tensors)
    found = reshard.verify(target)
    assert found.differences == 0, found
    assert {t.name: t.digest_a for t in found.tensors} == digests
    shutil.rmtree(target)
    return "done"


def _cancelling(after: int) -> Any:
    left = [after]

    def progress(_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise CancelledError

    return progress


def fail_some_writes(rate: float) -> None:
    """From now on a write fails now and then, as a full disk makes it."""
    pwrite, pick = os.pwrite, random.Random(1)  # noqa: S311  repeatable, not secret

    def failing(*args: Any) -> int:
        if pick.random() < rate:
            raise OSError(28, "made to fail")
        return pwrite(*args)

    os.pwrite = failing


def work(seed: int, minutes: float, folder: str, sources: list[Any], threads: int) -> Counter[str]:
    """Converts in ``threads`` threads of this process until the time is up."""
    root, ends = Path(folder) / f"process{seed}", time.monotonic() + 60 * minutes
    root.mkdir()
    fates: Counter[str] = Counter()
    _one_round(0, seed, root, sources, 1)
    fail_some_writes(0.003)
    rss, rounds = [_rss_mib()], 0
    with nothing_leaks(root, keeps=("reshard-partial",)):
        while time.monotonic() < ends:
            rounds += 1
            fates += _one_round(rounds, seed, root, sources, threads)
            rss.append(_rss_mib())
    half = len(rss) // 2
    print(
        f"process {seed}: {rounds} rounds, {sum(fates.values())} conversions, resident "
        f"{max(rss[:half] or rss):.0f} MiB at most in the first half, {max(rss[half:]):.0f} in the second",
        flush=True,
    )
    return fates


def _one_round(
    number: int, seed: int, root: Path, sources: list[Any], threads: int
) -> Counter[str]:
    """Many at once, then everything is as it was."""
    folder = Path(tempfile.mkdtemp(dir=root))
    with ThreadPoolExecutor(threads) as pool:
        fates = Counter(
            pool.map(
                lambda n: convert_once(n, seed, folder, sources),
                range(number * 100, number * 100 + 2 * threads),
            )
        )
    now = held(folder)
    assert not [t for t in now.threads if t.startswith("reshard")], now.threads
    assert not [f for f in now.files if str(folder) in f], now.files
    shutil.rmtree(folder)
    return fates


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    """Runs until the time is up; fails at the first thing that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stress-") as folder:
        sources = make_sources(Path(folder))
        with get_context("spawn").Pool(args.processes) as pool:
            jobs = [
                pool.apply_async(work, (seed, args.minutes, folder, sources, args.threads))
                for seed in range(1, args.processes + 1)
            ]
            fates = sum((job.get() for job in jobs), Counter())
            pool.close()
            pool.join()
        print(
            f"all: {sum(fates.values())} conversions, {dict(fates)}; nothing differs, nothing leaks"
        )


if __name__ == "__main__":
    main()
