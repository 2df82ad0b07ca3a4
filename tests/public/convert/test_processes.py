"""Conversions whose workers are in processes: large ones with many workers. The tests let small ones do the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import reshard
from reshard.engine.executor import Processes
from tests.campaigns import rarely
from tests.checkpoint_files import files_without_times
from tests.in_processes import CODE, OPTIONS, run_in_processes
from tests.orbax_trees import save_standard

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}, {"match": "small", "axes": ["x"]}],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    tree = {f"kernel{i}": rng.normal(size=(256, 512)).astype(np.float32) for i in range(8)}
    tree |= {f"small{i}": np.full((8, 8), i, np.float32) for i in range(60)}
    return save_standard(tmp_path_factory.mktemp("source") / "source", tree)


@pytest.fixture
def started(monkeypatch):
    """How many processes were started, by run."""
    found, usual = [], Processes.started

    def counted(processes, workers):
        found.append(processes)
        return usual(processes, workers)

    monkeypatch.setattr(Processes, "started", counted)
    return found


@pytest.mark.parametrize(
    "options",
    rarely([{"compression": "keep"}, {"cast": {"kernel": "bfloat16"}}, {"to": "safetensors"},
            {"compression": "zstd", "check": "readback"}, {}], 4),
    ids=str,
)  # fmt: skip
def test_the_same_bytes_as_threads(source, tmp_path, monkeypatch, started, options):
    threads = reshard.convert(source, tmp_path / "threads", layout=LAYOUT, **OPTIONS, **options)
    assert started == []
    run_in_processes(monkeypatch)
    assert reshard.plan(source, layout=LAYOUT, **OPTIONS, **options).plan.processes == 2
    target, told = tmp_path / "processes", []
    options = {"layout": LAYOUT, **OPTIONS, **options}
    processes = reshard.convert(source, target, progress=told.append, **options)
    assert started == [2]
    assert [(t.target, t.target_digest) for t in processes.tensors] == [
        (t.target, t.target_digest) for t in threads.tensors
    ]
    assert files_without_times(target) == files_without_times(tmp_path / "threads")
    assert told[-1].moved_bytes == told[-1].total_bytes
    assert reshard.verify(source, target).differences == 0


def test_several_targets(source, tmp_path, monkeypatch, started):
    run_in_processes(monkeypatch)
    targets = [
        reshard.Target(tmp_path / "columns", layout=LAYOUT),
        reshard.Target(tmp_path / "half", cast={"kernel": "bfloat16"}),
    ]
    reshard.convert_all(source, targets, **OPTIONS)
    assert started == [2]
    for target in targets:
        assert reshard.verify(source, target.target).differences == 0


@pytest.mark.parametrize("why", ["few workers", "little memory", "a database", "an executor"])
def test_where_threads_do_it(source, tmp_path, monkeypatch, started, why):
    from concurrent.futures import ThreadPoolExecutor

    run_in_processes(monkeypatch)
    with ThreadPoolExecutor(2) as executor:
        other = {
            "few workers": {"workers": 2},
            "little memory": {"max_memory": "511MiB"},
            "a database": {"ocdbt": True},
            "an executor": {"executor": executor},
        }
        reshard.convert(source, tmp_path / "target", **{**OPTIONS, **other[why]})
    assert started == []


def test_threads_do_it_where_no_interpreter_starts(source, tmp_path, monkeypatch, started):
    run_in_processes(monkeypatch)
    monkeypatch.setattr(sys, "executable", "/usr/sbin/embeds-python")
    reshard.convert(source, tmp_path / "target", **OPTIONS)
    assert started == [2]
    assert reshard.verify(source, tmp_path / "target").differences == 0


SCRIPT = """
    import sys
    import reshard
    print("it runs")
    {code}
    source, target = sys.argv[1:]
    print(reshard.plan(source, workers=4, max_memory="1GiB").plan.processes)
    reshard.convert(source, target, workers=4, max_memory="1GiB")
    """


def test_a_script_without_a_main_guard_runs_once(source, tmp_path):
    """Its working folder has a module that is named like one of ours' needs."""
    script, target = tmp_path / "script.py", tmp_path / "target"
    script.write_text(textwrap.dedent(SCRIPT).format(code=CODE))
    away = tmp_path / "away"
    away.mkdir()
    (away / "pickle.py").write_text("raise SystemExit('not this one')")
    done = subprocess.run(
        [sys.executable, script, source, target],
        cwd=away, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (["it runs", "2"], "")
    assert reshard.verify(source, target).differences == 0
