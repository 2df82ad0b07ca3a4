"""A view beside a conversion: ``python -m benchmarks.views.run [--gib 2] [--work DIR]``.

The source is a raw Orbax checkpoint, as ``convert`` writes it. ``reshard view`` serves it on loopback; clients are processes of their own. It
measures a whole download beside converting and reading the result, 1 MiB at random places by 16 clients, the memory of the server, and
the bytes that it reads while eight ranks load their shards. With ``--turned`` a map turns every kernel.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.conversion.rounds import tell

RESHARD = str(Path(sys.executable).parent / "reshard")
SIZE, RANKS, CLIENTS, REQUESTS = 4096, 8, 16, 25
MIB = 1 << 20
MAP = """
map:
  - {from: 'layers.{i}.kernel', to: 'layers.{i}.weight', shape: e f -> f e}
"""


def make_source(work: Path, gib: float) -> Path:
    """An Orbax checkpoint of kernels over a (4, 2) mesh, raw."""
    random_, folder = np.random.default_rng(0), work / "made"
    folder.mkdir()
    for number in range(max(1, int(gib * 1024 * MIB) // (2 * SIZE * SIZE))):
        kernel = random_.integers(0, 60_000, (SIZE, SIZE), np.uint16).view(ml_dtypes.bfloat16)
        save_file({f"layers.{number}.kernel": kernel}, folder / f"model-{number:05}.safetensors")
    rules = {"mesh": {"axes": ["data", "model"], "shape": [4, 2]}, "rules": [{"match": "kernel", "axes": ["data", "model"]}]}  # fmt: skip
    layout = work / "layout.json"
    layout.write_text(json.dumps(rules))
    source = work / "source"
    subprocess.run([RESHARD, "convert", "-q", str(folder), str(source), "--to", "orbax", "--layout", str(layout)], check=True)  # fmt: skip
    shutil.rmtree(folder)
    return source


@contextmanager
def served(source: Path, options: list[str]) -> Iterator[tuple[str, int]]:
    """A server of a view; the URL of its one weights file, and the number of its process."""
    command = [RESHARD, "view", str(source), "--port", "0", "--name", "x", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = None
        while found is None:
            line = server.stdout.readline()
            assert line, "reshard view has ended"
            found = re.search(r"HF_ENDPOINT=(\S+)", line)
        try:
            yield f"{found[1]}/views/x/resolve/main/model.safetensors", server.pid
        finally:
            server.terminate()
            server.wait()


def read(url: str, start: int = 0, stop: int | None = None) -> int:
    """Reads a range of a file, and drops the bytes; returns their number."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc)
    ranged = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
    connection.request("GET", place.path, headers=ranged)
    answer, count = connection.getresponse(), 0
    buffer = memoryview(bytearray(MIB))
    while got := answer.readinto(buffer):
        count += got
    connection.close()
    return count


def timed(command: list[str]) -> float:
    """Seconds that a command takes."""
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def downloads(source: Path, work: Path, options: list[str], rounds: int) -> None:
    """A whole download beside a conversion and a read of its result, in turn."""
    target, ratios = work / "converted", []
    curl = ["curl", "-sf", "-o", "/dev/null"]
    with served(source, options) as (url, pid):
        for number in range(rounds + 1):
            convert = timed([RESHARD, "convert", "-q", str(source), str(target), "--to", "safetensors", *options])  # fmt: skip
            reading = timed(["cat", *map(str, target.glob("*.safetensors"))])
            shutil.rmtree(target)
            download = timed([*curl, url])
            until = [*curl, "-r", "0-", "-w", "%{time_starttransfer}", url]
            first = subprocess.check_output(until, text=True)
            if number:  # the first round fills caches
                ratios.append(download / (convert + reading))
                tell(
                    f"convert {convert:.2f} s, read {reading:.2f} s, download {download:.2f} s, first byte {1000 * float(first):.1f} ms"
                )
        print(
            f"whole download, × convert + read: {statistics.median(ratios):.2f}; server at most {memory(pid)} MiB"
        )


def anywhere(source: Path, options: list[str]) -> None:
    """1 MiB at random places of the file, by clients at once."""
    with served(source, options) as (url, pid):
        nbytes = size(url)
        for name in ("first", "again"):
            waits: list[float] = []
            threads = [threading.Thread(target=_reads, args=(url, nbytes, seed, waits)) for seed in range(CLIENTS)]  # fmt: skip
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            waits.sort()
            p50, p99 = (1000 * waits[int(len(waits) * share)] for share in (0.5, 0.99))
            print(
                f"1 MiB anywhere, {CLIENTS} clients, {name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms; server at most {memory(pid)} MiB"
            )


def _reads(url: str, nbytes: int, seed: int, waits: list[float]) -> None:
    place, chosen = urlsplit(url), random.Random(seed)  # noqa: S311  no secret
    connection = http.client.HTTPConnection(place.netloc)
    for _ in range(REQUESTS):
        start = chosen.randrange(nbytes - MIB)
        began = time.monotonic()
        connection.request("GET", place.path, headers={"Range": f"bytes={start}-{start + MIB - 1}"})
        assert len(connection.getresponse().read()) == MIB
        waits.append(time.monotonic() - began)


def ranks(source: Path, options: list[str]) -> None:
    """Eight processes that load their shards: rows of every second tensor, and the others whole, of which they would keep columns."""
    with served(source, options) as (url, pid):
        nbytes = size(url)
        before = read_bytes(pid)
        began = time.monotonic()
        loading = [subprocess.Popen([sys.executable, "-m", "benchmarks.views.run", "--rank", str(rank), url]) for rank in range(RANKS)]  # fmt: skip
        assert all(process.wait() == 0 for process in loading)
        seconds = time.monotonic() - began
        share = (read_bytes(pid) - before) / nbytes
        print(
            f"{RANKS} ranks: the source is read {share:.2f} times in {seconds:.1f} s; server at most {memory(pid)} MiB"
        )


def load_rank(rank: int, url: str) -> None:
    """Reads the shard of one rank, tensor by tensor."""
    length = int.from_bytes(_bytes(url, 0, 8), "little")
    header = json.loads(_bytes(url, 8, 8 + length))
    header.pop("__metadata__", None)
    for number, entry in enumerate(sorted(header.values(), key=lambda e: e["data_offsets"])):
        start, stop = (8 + length + at for at in entry["data_offsets"])
        if number % 2:
            part = (stop - start) // RANKS
            start, stop = start + rank * part, start + (rank + 1) * part
        assert read(url, start, stop) == stop - start


def _bytes(url: str, start: int, stop: int) -> bytes:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc)
    connection.request("GET", place.path, headers={"Range": f"bytes={start}-{stop - 1}"})
    return connection.getresponse().read()


def size(url: str) -> int:
    """Bytes of a file."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc)
    connection.request("HEAD", place.path)
    return int(connection.getresponse().headers["Content-Length"])


def memory(pid: int) -> int:
    """The most memory of a process so far, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) >> 10 if found else 0


def read_bytes(pid: int) -> int:
    """Bytes that a process has read by system calls from files; what it takes from sockets is none."""
    found = re.search(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())
    return int(found[1]) if found else 0


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Measure views.")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turned", action="store_true")
    parser.add_argument("--work", type=Path, default=None, help="folder on the disk to measure")
    parser.add_argument("--rank", nargs=2, metavar=("RANK", "URL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        load_rank(int(given.rank[0]), given.rank[1])
        return
    work = Path(tempfile.mkdtemp(prefix="views-", dir=given.work))
    try:
        source, options = make_source(work, given.gib), []
        if given.turned:
            (work / "map.yaml").write_text(MAP)
            options = ["--map", str(work / "map.yaml")]
        options += ["--file-bytes", "100GB"]
        downloads(source, work, options, given.rounds)
        anywhere(source, options)
        ranks(source, options)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
