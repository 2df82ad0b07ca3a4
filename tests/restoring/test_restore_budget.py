"""Memory and bytes: budgets hold, nothing is read twice, nothing is read that is not needed."""

from __future__ import annotations

import json
import shutil
import weakref

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard.restoring import outputs, regions
from tests.equal import assert_same
from tests.fresh_process import run_fresh
from tests.orbax_trees import mesh, save_pytree

pytestmark = pytest.mark.xdist_group("restore-budget")

MIB = 1 << 20
LINE = mesh((8,), ("x",))
VALUES = np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)
SLACK_BYTES = 256 << 10
"""Metadata that is read when a checkpoint is opened."""

SAVINGS = {
    "zstd": {},
    "raw": {"use_ocdbt": False, "use_compression": False},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """16 MiB cut by rows and by columns."""
    root = tmp_path_factory.mktemp("budget")
    for cut, spec in (("rows", PartitionSpec("x")), ("columns", PartitionSpec(None, "x"))):
        array = jax.device_put(VALUES, NamedSharding(LINE, spec))
        for kind, options in SAVINGS.items():
            save_pytree(root / f"{cut}-{kind}", {"w": array}, **options)
    yield root
    shutil.rmtree(root)


COUNTED = """
    import json, sys
    from pathlib import Path
    import jax, reshard
    from jax.sharding import NamedSharding, PartitionSpec
    def read_bytes():
        return int(Path("/proc/self/io").read_text().split()[1])
    def count(path, axes):
        reports = []
        def restore():
            return reshard.restore(path, layout=NamedSharding(mesh, PartitionSpec(*axes)), report=reports.append)
        restore()  # whatever is imported is imported now
        before = read_bytes()
        jax.block_until_ready(restore())
        return [read_bytes() - before, reports[1].read_bytes, reports[1].needed_bytes]
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    print(json.dumps([count(path, axes) for path, axes in json.loads(sys.argv[1])]))
"""
CUTS = ("rows", "columns")
SHARDS = (["x"], [None, "x"], [])


@pytest.fixture(scope="module")
def counts(sources):
    """Bytes that a process read, those that it reported, and those that it needed, by kind, cut and axes."""
    asked = [(kind, cut, axes) for kind in SAVINGS for cut in CUTS for axes in SHARDS]
    paths = [(str(sources / f"{cut}-{kind}"), axes) for kind, cut, axes in asked]
    found = run_fresh(COUNTED, json.dumps(paths)).printed
    return {(kind, cut, *axes): n for (kind, cut, axes), n in zip(asked, found, strict=True)}


@pytest.mark.parametrize("axes", SHARDS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", SAVINGS)
def test_every_stored_byte_is_read_once(counts, kind, cut, axes):
    read, reported, needed = counts[kind, cut, *axes]
    assert reported == needed
    assert reported <= read <= reported + SLACK_BYTES
    if kind == "raw":
        assert needed == VALUES.nbytes


def test_a_part_of_a_raw_tensor_reads_a_part_of_its_bytes(sources, monkeypatch):
    _keep_devices(monkeypatch, 2)
    for cut in ("rows", "columns"):
        reports = []
        _restore_columns(sources / f"{cut}-raw", reports)
        assert reports[0].needed_bytes == VALUES.nbytes // 4
        assert reports[0].amplification == 1.0


def test_a_part_of_a_compressed_tensor_reads_its_chunks_once(sources, monkeypatch):
    _keep_devices(monkeypatch, 2)
    reports = []
    _restore_columns(sources / "columns-zstd", reports)
    assert reports[0].amplification == 1.0
    assert reports[0].read_bytes < VALUES.nbytes // 3
    _restore_columns(sources / "rows-zstd", reports)  # each chunk holds a bit of every column
    assert reports[1].amplification == 1.0


def _keep_devices(monkeypatch, count):
    """As in a process that has only the first devices; the array itself is never put together."""

    def local(name, shape, dtype, sharding, rank=None):
        return _Part(outputs.jax_array(name, shape, dtype, sharding, rank), count)

    monkeypatch.setattr("reshard.restoring.plan.jax_array", local)


class _Part:
    is_staged = False

    def __init__(self, output, count):
        self.regions = output.regions[:count]

    def place(self, number, array):
        box = self.regions[number].box
        np.testing.assert_array_equal(array, VALUES[box.slices])

    def assemble(self, placed):
        return len(placed)


def _restore_columns(path, reports):
    sharding = NamedSharding(LINE, PartitionSpec(None, "x"))
    assert reshard.restore(path, layout=sharding, report=reports.append)["w"] == 2


@pytest.fixture
def staged(monkeypatch):
    """As on devices with memory of their own: buffers are copied and count against the budget."""
    monkeypatch.setattr("reshard.restoring.outputs.adopts", lambda _place, _dtype: False)


@pytest.mark.parametrize(
    ("kind", "max_memory", "amplification"),
    [("raw", "64MiB", 1), ("zstd", "64MiB", 1), ("raw", "9MiB", 1), ("zstd", "14MiB", 2)],
)
@pytest.mark.usefixtures("staged")
def test_a_budget_below_a_tensor_splits_it(sources, kind, max_memory, amplification):
    """Columns from rows: all eight shards (2 MiB each) need every chunk."""
    reports = []
    sharding = NamedSharding(LINE, PartitionSpec(None, "x"))
    found = reshard.restore(
        sources / f"rows-{kind}", layout=sharding, max_memory=max_memory, report=reports.append
    )
    assert_same(found["w"], VALUES)
    assert reports[0].amplification == amplification


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("kind", SAVINGS)
def test_too_small_a_budget_names_the_smallest_that_works(sources, kind):
    sharding = NamedSharding(LINE, PartitionSpec("x"))
    with pytest.raises(
        reshard.MemoryBudgetError, match="for the largest shard on its way to a device"
    ) as no:
        reshard.restore(sources / f"rows-{kind}", layout=sharding, max_memory="1MiB")
    found = reshard.restore(
        sources / f"rows-{kind}", layout=sharding, max_memory=no.value.smallest_bytes
    )
    assert_same(found["w"], VALUES)
    with pytest.raises(reshard.MemoryBudgetError):
        reshard.restore(
            sources / f"rows-{kind}", layout=sharding, max_memory=no.value.smallest_bytes - MIB
        )


@pytest.mark.usefixtures("staged")
def test_what_is_in_flight_stays_within_the_budget(sources, monkeypatch):
    alive = []
    made = regions.Buffer.__init__

    def counted(self, *arguments, **named):
        made(self, *arguments, **named)
        alive.append(weakref.ref(self))

    monkeypatch.setattr(regions.Buffer, "__init__", counted)
    most = 0

    def look(_progress):
        nonlocal most
        live = [buffer() for buffer in alive]
        most = max(most, sum(b.array.nbytes for b in live if b is not None))

    sharding = NamedSharding(LINE, PartitionSpec("x"))
    reshard.restore(sources / "rows-raw", layout=sharding, max_memory="16MiB", progress=look)
    assert len(alive) == 8
    assert most <= 16 * MIB


PEAK = """
    import json, resource, sys
    import jax, reshard
    from jax.sharding import NamedSharding, PartitionSpec
    path, small, axes, max_memory = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    reshard.restore(small, layout=sharding)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    jax.block_until_ready(reshard.restore(path, layout=sharding, max_memory=max_memory))
    print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10))
"""


@pytest.mark.parametrize("axes", [["x"], [None, "x"], []])
def test_the_peak_is_the_result_and_the_budget(tmp_path_factory, axes):
    root = tmp_path_factory.mktemp("peak")
    values = np.random.default_rng(0).integers(0, 99, (4096, 8192), np.uint8).astype(np.float32)
    save_pytree(
        root / "large", {"w": jax.device_put(values, NamedSharding(LINE, PartitionSpec("x")))}
    )
    save_pytree(root / "small", {"w": np.zeros((8, 8), np.float32)})
    grown = run_fresh(
        PEAK, str(root / "large"), str(root / "small"), json.dumps(axes), "32MiB"
    ).printed
    shutil.rmtree(root)
    assert grown <= values.nbytes + 32 * MIB + 16 * MIB
