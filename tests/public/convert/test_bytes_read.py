"""Reads from the source: every byte once where the plan says so, else no more than its price."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.formats.registry import open_reader
from tests.fresh_process import run_fresh
from tests.orbax_trees import mesh, put, save_pytree
from tests.source_reads import FRAME_HEADERS_BYTES, Reads, encoded_bytes

MIB = 1 << 20
LINE = mesh((8,), ("x",))
METADATA_BYTES = 256 << 10
"""Small files that opening a checkpoint and planning read, some of them twice."""

COUNTED = """
    import json, sys
    from pathlib import Path
    import reshard
    def read_bytes():
        return int(Path("/proc/self/io").read_text().split()[1])
    sources, folder, cases = sys.argv[1:]
    found = []
    for number, (source, options) in enumerate(json.loads(cases)):
        source, target = f"{sources}/{source}", f"{folder}/{number}"
        reshard.convert(sources + "/small", target + "-small", **options)  # whatever is imported is imported now
        plan = reshard.plan(source, target, **options)
        before = read_bytes()
        report = reshard.convert(source, target, **options)
        found.append([read_bytes() - before, plan.amplification, report.read_bytes])
    print(json.dumps(found))
"""


def layout(*axes):
    return {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "w", "axes": axes}]}


ROWS, COLUMNS = layout("x"), layout(None, "x")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """16 MiB cut by rows and by columns, of numbers that do not compress well."""
    root = tmp_path_factory.mktemp("sources")
    values = np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)
    for name, axes in (("rows", ("x",)), ("columns", (None, "x"))):
        tree = {"w": put(values, *axes, on=LINE)}
        save_pytree(root / name, tree)
        save_pytree(root / f"{name}-raw", tree, use_compression=False, use_ocdbt=False)
        save_pytree(root / f"{name}-zarr3", tree, use_zarr3=True, use_ocdbt=False)
    save_pytree(root / "small", {"w": put(values[:64, :64], "x", on=LINE)})
    yield root
    shutil.rmtree(root)


CASES = [
    ("rows", COLUMNS, {}),
    ("rows", ROWS, {}),
    ("columns", ROWS, {}),
    ("columns-zarr3", ROWS, {}),
    ("columns-raw", ROWS, {}),
    ("rows-raw", COLUMNS, {"compression": "zstd"}),
    ("columns", ROWS, {"compression": "zstd"}),
    ("rows-zarr3", ROWS, {"compression": "keep"}),
    ("rows", COLUMNS, {"cast": {"w": "bfloat16"}}),
]
IDS = ["-".join([s, "to", "rows" if g is ROWS else "columns", *map(str, o)]) for s, g, o in CASES]


REPEATED = ("columns", "columns-zarr3")


@pytest.fixture(scope="module")
def counted(sources, tmp_path_factory):
    """The counts of one process in each case, and in those of ``REPEATED``."""
    cases = [(s, {**options, "layout": g, "max_memory": 256 * MIB}) for s, g, options in CASES]
    little = {"compression": "zstd", "layout": ROWS, "max_memory": 16 * MIB, "workers": 2}
    text = json.dumps([*cases, *((source, little) for source in REPEATED)])
    return run_fresh(COUNTED, str(sources), str(tmp_path_factory.mktemp("counted")), text).printed


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_the_kernel_counts_each_source_byte_once(sources, counted, number):
    read, amplification, reported = counted[number]
    once = encoded_bytes(sources / CASES[number][0])
    assert (amplification, reported) == (1.0, once)
    assert once <= read <= once + METADATA_BYTES


@pytest.mark.parametrize("source", REPEATED)
def test_repeated_reading_costs_no_more_than_its_price(sources, counted, source):
    """Compressed chunks that do not fit the memory are read again, from their start to the last row needed."""
    read, amplification, reported = counted[len(CASES) + REPEATED.index(source)]
    once = encoded_bytes(sources / source)
    assert amplification > 1.0
    assert reported == round(amplification * once)
    assert once < read <= amplification * once + METADATA_BYTES


def read_times(monkeypatch, source, target, **options):
    """How often each byte of each chunk of ``w`` was read: bytes by count."""
    reads = Reads(monkeypatch)
    reshard.convert(source, target, **options)
    reader = open_reader(str(source))
    times: Counter[int] = Counter()
    for index in reader.tensors["w"].spec.storage.indices():
        extent = reader.locate("w", index)
        times += reads.times_read(extent.path, extent.offset, extent.offset + extent.length)
    return times


@pytest.mark.parametrize(("source", "layout", "options"), CASES, ids=IDS)
def test_no_byte_of_a_chunk_is_read_twice(sources, source, layout, options, monkeypatch, tmp_path):
    options = {**options, "layout": layout, "max_memory": 256 * MIB}
    times = read_times(monkeypatch, sources / source, tmp_path / "target", **options)
    assert times.keys() <= {1, 2}
    assert times.total() == encoded_bytes(sources / source)
    assert times[2] <= FRAME_HEADERS_BYTES


def test_parts_of_raw_chunks_are_read_alone(sources, monkeypatch, tmp_path):
    """Where memory allows no whole block, ranges of raw chunks are read, each byte still once."""
    options = {"compression": "zstd", "layout": ROWS, "max_memory": 16 * MIB, "workers": 2}
    times = read_times(monkeypatch, sources / "columns-raw", tmp_path / "target", **options)
    assert times == {1: encoded_bytes(sources / "columns-raw")}


def test_a_selection_reads_nothing_else(tmp_path, monkeypatch):
    tree = {n: put(np.random.default_rng(0).normal(size=(512, 64)), "x", on=LINE) for n in "wv"}
    save_pytree(tmp_path / "source", tree, use_ocdbt=False)
    reads = Reads(monkeypatch)
    reshard.convert(tmp_path / "source", tmp_path / "target", select=["^w$"])
    chunks = [
        Path(p) for p in reads.intervals if "/source/" in p and not Path(p).name.startswith(".")
    ]
    folders = {path.parent.name for path in chunks}
    assert folders & set(tree) == {"w"}


def test_every_copy_that_ranks_write_counts_as_written(tmp_path: Path) -> None:
    """As the plan says, and as the files have."""
    reshard.save(tmp_path / "src", {"w": np.arange(4096, dtype=np.float32)})
    planned = reshard.plan(tmp_path / "src", tmp_path / "a", to="safetensors", files="ranks", mesh="m=8")  # fmt: skip
    made = reshard.convert(tmp_path / "src", tmp_path / "a", to="safetensors", files="ranks", mesh="m=8")  # fmt: skip
    assert made.written_bytes == planned.written_bytes == 8 * 4096 * 4
