"""Peak memory of whole conversions in a fresh process: within 128 MiB and the budget."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.memory.random_plans import plans
from benchmarks.memory.run import BASE_MIB, CASES, run_within
from benchmarks.memory.sources import make_sources
from reshard.planning.task_cost import PROCESS_BYTES
from tests.campaigns import campaign, rarely
from tests.fresh_process import run_fresh
from tests.in_processes import CODE, OPTIONS
from tests.orbax_trees import mesh, save_pytree, save_standard

pytestmark = pytest.mark.xdist_group("memory")  # one worker makes the large checkpoints, once

MIB = 1 << 20
SHAPE = (3072, 8192)
"""96 MiB in float32: three times the budget."""
BUDGET_MIB = 32

CONVERT = """
    import json, sys
    import reshard
    source, target, options = sys.argv[1:]
    report = reshard.convert(source, target, **json.loads(options))
    print(json.dumps(sorted({t.strategy for t in report.tensors})))
"""
ROWS, COLUMNS = ["x"], [None, "x"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """One large tensor, cut by rows and by columns, and many small ones."""
    root = tmp_path_factory.mktemp("large")
    values = np.random.default_rng(0).integers(0, 99, SHAPE, np.uint8).astype(np.float32)
    line = mesh((8,), ("x",))
    for name, axes in (("rows", ("x",)), ("columns", (None, "x"))):
        array = jax.device_put(values, NamedSharding(line, PartitionSpec(*axes)))
        save_standard(root / name, {"w": array})
    save_pytree(root / "raw", {"w": array}, use_compression=False, use_ocdbt=False)
    save_standard(root / "small", {f"w{i}": values[i, :64] for i in range(1000)})
    yield root
    shutil.rmtree(root)


@pytest.fixture
def target(tmp_path):
    """Removed afterwards, since pytest keeps what tests leave."""
    yield tmp_path / "target"
    shutil.rmtree(tmp_path / "target", ignore_errors=True)


@pytest.mark.parametrize(
    ("strategy", "source", "axes", "options"),
    [
        ("weave", "columns", ROWS, {"check": "readback"}),
        ("scatter", "rows", COLUMNS, {"cast": {"w": "bfloat16"}}),
        ("copy", "rows", ROWS, {"compression": "keep", "check": "readback"}),
        *campaign(
            ("weave", "raw", ROWS, {}),
            ("block", "columns", ROWS, {"compression": "zstd"}),
            ("whole", "small", None, {}),
            ("scatter", "rows", COLUMNS, {}),
            ("weave", "columns", ROWS, {}),
            ("weave", "columns", [], {}),
            ("block", "rows", COLUMNS, {"compression": "blosc"}),
            ("block", "rows", COLUMNS, {"ocdbt": True}),
        ),
    ],
)
def test_peak_memory_stays_within_the_budget(sources, strategy, source, axes, options, target):
    rules = [] if axes is None else [{"match": "w", "axes": axes}]
    layout = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": rules}
    text = json.dumps({**options, "layout": layout, "workers": 2, "max_memory": BUDGET_MIB * MIB})
    outcome = run_fresh(CONVERT, str(sources / source), str(target), text)
    assert outcome.printed == [strategy]
    assert outcome.peak_bytes <= (128 + BUDGET_MIB) * MIB


IN_PROCESSES = """
import glob, json, sys
import reshard
{code}
source, target, options = sys.argv[1:]
options, peaks = json.loads(options), {{}}

def look(_):
    for path in glob.glob("/proc/self/task/*/children"):
        for pid in open(path).read().split():
            text = open(f"/proc/{{pid}}/status").read()
            peaks[pid] = int(text.partition("VmHWM:")[2].split()[0]) << 10

plan = reshard.plan(source, **options).plan
reshard.convert(source, target, progress=look, **options)
print(json.dumps([plan.processes, plan.peak_bytes, sum(peaks.values()), len(peaks)]))
"""


@pytest.mark.parametrize(
    ("source", "axes"),
    [("columns", ROWS), ("small", None), *campaign(("rows", COLUMNS), ("raw", ROWS))],
)
def test_processes_keep_to_the_budget_together(sources, source, axes, target):
    """The sum of all peaks, as if they came at once, is within the plan's buffers and what the processes may take."""
    rules = [] if axes is None else [{"match": "w", "axes": axes}]
    layout = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": rules}
    text = json.dumps({**OPTIONS, "layout": layout})
    outcome = run_fresh(IN_PROCESSES.format(code=CODE), str(sources / source), str(target), text)
    count, planned, peaks, seen = outcome.printed
    assert (count, seen) == (2, 2)
    assert outcome.peak_bytes + peaks <= 128 * MIB + count * PROCESS_BYTES + planned


@pytest.fixture(scope="module")
def small_sources(tmp_path_factory):
    """The sources of ``benchmarks.memory.run`` in small: a tensor of three budgets, 6,000 tensors, 2,000 chunks."""
    root = tmp_path_factory.mktemp("small")
    make_sources(root, {c.source for c in CASES}, mib=48, tensors=6000, chunks=2000)
    yield root
    shutil.rmtree(root)


USUAL = {
    "raw, columns to rows", "zstd to blosc, rows to columns", "zstd to OCDBT, rows to columns", "one gzip chunk",
    "many chunks, as they are (keep)", "many small tensors", "verify two checkpoints", "verify many small tensors",
    "transposed in blosc, diff", "order F in zstd, to rank files",
}  # fmt: skip
"""Each way of reading and writing once; the other cases are left to campaigns."""


@pytest.mark.parametrize(
    "case", rarely(CASES, lambda case: case.label in USUAL), ids=lambda case: case.label
)
def test_every_case_keeps_to_its_budget_or_is_refused_with_one_that_works(
    small_sources, case, target
):
    *refused, (budget_mib, outcome) = run_within(case, small_sources, target, 16, workers=2)
    for mib, refusal in refused:
        assert f"but {mib} MiB are allowed; allow max_memory of {budget_mib}MiB" in refusal.refused
        assert refusal.peak <= BASE_MIB + mib
        if case.source == "small":
            assert refusal.refused.startswith("the metadata of ")
            assert repr(str(small_sources / "small")) in refusal.refused
    assert not outcome.refused
    assert refused or case.source != "small" or case.command == "verify"
    assert outcome.peak <= BASE_MIB + budget_mib
    if outcome.planned is not None:
        assert outcome.planned <= budget_mib + 16  # metadata that is not counted
        assert outcome.peak <= BASE_MIB + outcome.planned


def test_random_plans_are_the_same_for_a_seed_and_have_every_command():
    drawn = list(plans(40, 0))
    assert drawn == list(plans(40, 0))
    assert drawn != list(plans(40, 1))
    assert {case.command for case, _, _ in drawn} == {"convert", "verify", "diff"}
    assert {case.source.split("-")[2] for case, _, _ in drawn} == {"C2", "F2", "T3", "B2"}
