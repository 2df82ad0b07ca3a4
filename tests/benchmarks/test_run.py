"""The benchmark itself works, on a tree of 1 MB and in one round; nothing here is a timing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.conversion.contenders import CONTENDERS
from benchmarks.conversion.rounds import Results
from benchmarks.conversion.summary import ratio, ratios
from benchmarks.conversion.table import as_markdown
from benchmarks.measure import Cost, RunFailedError, RunTooLongError, run_once
from benchmarks.trees.sizes import TreeSize

ROOT = Path(__file__).parents[2]


def benchmark(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.run", "--size", "tiny", "--rounds", "1", *options]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "PYTHONPATH": f"{ROOT}:{ROOT}/server"},
        capture_output=True,
        text=True,
        check=False,
    )


def cost(wall_s: float) -> Cost:
    return Cost(wall_s, 0.0, None, 1.0, 10.0, 5.0)


def test_the_benchmark_runs_and_prints_a_table(tmp_path: Path) -> None:
    names = ["cp", "orbax", "raw", "zstd", "keep", "cp-raw", "raw-raw", "restore-raw"]
    report, picture, work = tmp_path / "b.json", tmp_path / "b.svg", tmp_path / "work"
    work.mkdir()
    options = ("--only", ",".join(names), "--json", str(report), "--picture", str(picture))
    done = benchmark(work, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reshard, uncompressed" in done.stdout
    measured = json.loads(report.read_text())
    assert set(measured["contenders"]) == set(names)
    assert measured["left_out"] == measured["failed"] == {}
    assert set(measured["contenders"]["raw"]["wall_ratio"]) == {"cp", "orbax"}
    assert measured["contenders"]["cp"]["median"]["written_mib"] > 0.7
    assert picture.read_text().lstrip().startswith("<?xml")
    assert list(work.iterdir()) == []


def test_an_unknown_contender_is_named(tmp_path: Path) -> None:
    done = benchmark(tmp_path, "--only", "rsync")
    assert done.returncode == 1
    assert "--only rsync: expected one of cp, orbax, " in done.stderr


def test_ratios_are_taken_round_by_round() -> None:
    assert ratio([cost(1), cost(30), cost(2)], [cost(2), cost(40), cost(4)]) == 0.5
    results = Results({"raw": [cost(3)], "cp": [cost(2)]})
    assert ratios("raw", results) == {"cp": 1.5}


def test_the_document_shows_ratios_and_what_was_left_out() -> None:
    costs = {"raw": [cost(3)], "cp": [cost(2)], "raw-raw": [cost(1)], "cp-raw": [cost(4)]}
    lines = as_markdown(Results(costs, {"orbax": "needs 70 GiB"}), "A tree").splitlines()
    assert lines[0] == "A tree"
    assert "| reshard, uncompressed | 3.00 |  | 1.00 | 10 | 5 | 1.50 |  |  |  |" in lines
    assert "| reshard, raw to raw | 1.00 |  | 1.00 | 10 | 5 |  |  |  | 0.25 × cp-raw |" in lines
    assert lines[-1] == "- left out: Orbax restore + save: needs 70 GiB"


def test_every_comparison_names_a_contender() -> None:
    for contender in CONTENDERS.values():
        assert {*contender.against, *contender.needs} <= set(CONTENDERS)


def test_the_full_tree_is_the_one_described() -> None:
    assert round(TreeSize.named("full").nbytes / 1e9, 2) == 2.25
    assert round(TreeSize.named("30").nbytes / 2**30) == 30
    assert TreeSize(small=100_000).nbytes == 100_000 * 4096
    with pytest.raises(SystemExit, match="--size huge: expected tiny, small, full or a number"):
        TreeSize.named("huge")


def test_cost_is_of_the_process_that_ran(tmp_path: Path) -> None:
    target = tmp_path / "target"
    code = f"b = b'x' * (200 << 20); open({str(target / 'f')!r}, 'wb').write(b[: 3 << 20])"
    target.mkdir()
    measured = run_once([sys.executable, "-c", code], target, tmp_path, 60)
    assert measured.peak_mib > 200
    assert measured.written_mib == 3
    assert measured.wall_s >= measured.sync_s > 0


def test_failing_and_endless_commands_raise_different_errors(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"(?s)ended with 3:\nno such thing"):
        run_once(["sh", "-c", "echo no such thing; exit 3"], tmp_path / "t", tmp_path, 60)
    with pytest.raises(RunTooLongError, match=r"still running after 0\.2 s"):
        run_once(["sleep", "60"], tmp_path / "t", tmp_path, 0.2)
