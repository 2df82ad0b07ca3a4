"""What a stream reads: each chunk once, only what is needed, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

import reshard
from reshard.formats.registry import open_reader
from tests.fresh_process import run_fresh
from tests.open_files import open_files
from tests.orbax_trees import (
    mesh,
    put,
    save_pytree,
)
from tests.source_reads import Reads

MIB = 1 << 20


LINE = mesh((8,), ("x",))


def octets(array):
    return np.ascontiguousarray(array).tobytes()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """16 MiB cut by columns, so that rows lie in eight chunks: compressed, and raw."""
    root = tmp_path_factory.mktemp("large")
    array = np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)
    tree = {"w": put(array, None, "x", on=LINE), "v": put(array[:64], "x", on=LINE)}
    save_pytree(root / "zstd", tree)
    save_pytree(root / "raw", tree, use_ocdbt=False, use_compression=False)
    return root, array


def times_read(monkeypatch, path, name, box, **options):
    """How often the bytes of the tensor's chunks were read, and of how many bytes it was whole chunks."""
    opened = reshard.open_checkpoint(path)
    stream = opened.stream(name, box, **options)
    reads = Reads(monkeypatch)
    found = b"".join(stream)
    others = {p for p in reads.intervals if "/v/" in p}
    reader, counts = open_reader(str(path)), {}
    for index in reader.tensors[name].spec.storage.indices():
        extent = reader.locate(name, index)
        times = reads.times_read(extent.path, extent.offset, extent.offset + extent.length)
        for count, nbytes in times.items():
            counts[count] = counts.get(count, 0) + nbytes
    return found, {c: n for c, n in counts.items() if c and n}, others


INDEX = {
    "": np.s_[:], "100:1900,:": np.s_[100:1900], ":,300:1900": np.s_[:, 300:1900], "512:1024": np.s_[512:1024],
    "7:9": np.s_[7:9], ":,256:512": np.s_[:, 256:512], "0:10,256:2048": np.s_[0:10, 256:2048],
}  # fmt: skip


@pytest.mark.parametrize("box", ["", "100:1900,:", ":,300:1900"])
def test_each_compressed_chunk_is_read_once(large, monkeypatch, box):
    root, array = large
    found, counts, _ = times_read(monkeypatch, root / "zstd", "w", box)
    reader = open_reader(str(root / "zstd"))
    whole = sum(reader.locate("w", (0, i)).length for i in range(8))
    assert found == octets(array[INDEX[box]])
    assert counts.get(2, 0) <= 8 * 18  # frame headers are looked at first
    assert counts[1] + counts.get(2, 0) <= whole
    assert set(counts) <= {1, 2}


@pytest.mark.parametrize(
    ("box", "needed"),
    [
        ("", 1.0),
        ("512:1024", 0.25),
        ("7:9", 2 / 2048),
        (":,256:512", 1 / 8),
        ("0:10,256:2048", 10 * 7 / 8 / 2048),
    ],
)
def test_of_raw_chunks_only_what_is_needed_is_read(large, monkeypatch, box, needed):
    root, array = large
    found, counts, others = times_read(monkeypatch, root / "raw", "w", box)
    assert found == octets(array[INDEX[box]])
    assert counts == {1: round(needed * array.nbytes)}
    assert not others


def test_a_range_reads_nothing_before_its_start(large, monkeypatch):
    root, array = large
    stream = reshard.open_checkpoint(root / "raw").stream("w")
    reads = Reads(monkeypatch)
    whole = octets(array)
    assert b"".join(stream.read(9_000_001, 9_200_003)) == whole[9_000_001:9_200_003]
    total = sum(b - a for found in reads.intervals.values() for a, b in found)
    assert total <= 200_008


def test_what_does_not_fit_side_by_side_is_read_again_and_stays_the_same(large):
    root, array = large
    opened = reshard.open_checkpoint(root / "zstd")
    roomy, tight = opened.stream("w"), opened.stream("w", max_memory="12MiB")
    assert tight.memory_bytes <= 12 * MIB < roomy.memory_bytes
    assert b"".join(tight) == octets(array)


STREAMED = """
    import hashlib, json, resource, sys
    import reshard
    path, small, name, limit = sys.argv[1:]
    for chunk in reshard.open_checkpoint(small).stream("w"): pass
    stream = reshard.open_checkpoint(path).stream(name, max_memory=int(limit))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    total = 0
    for piece in stream:
        total += len(piece)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps([total, after - before, stream.memory_bytes]))
"""


def test_the_memory_of_a_process_grows_by_no_more_than_the_budget(tmp_path):
    rng = np.random.default_rng(0)
    array = rng.integers(0, 255, (2048, 32768), np.uint8)
    save_pytree(tmp_path / "c", {"w": put(array, None, "x", on=LINE)})
    save_pytree(tmp_path / "s", {"w": put(array[:64, :64], None, "x", on=LINE)})
    for limit in (8 * MIB, 24 * MIB):
        total, grown, planned = run_fresh(
            STREAMED, str(tmp_path / "c"), str(tmp_path / "s"), "w", str(limit)
        ).printed
        assert total == array.nbytes == 64 * MIB
        assert planned <= limit
        assert grown <= limit


def test_nothing_is_left_open_by_a_stream_that_is_given_up(large):
    pieces = iter(reshard.open_checkpoint(large[0] / "raw").stream("w"))
    next(pieces)
    assert open_files(large[0]) > 0
    pieces.close()
    assert open_files(large[0]) == 0
