"""Real processes: signals that end a run in order, and two runs to one target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.conversion import convert as convert_module
from reshard.conversion import open_target
from reshard.engine import task_stream
from reshard.errors import ReshardError, StorageError, TargetExistsError
from reshard.storage.local.staging import staging_for
from tests.campaigns import rarely, singly
from tests.in_processes import CODE, OPTIONS, run_in_processes
from tests.living import is_running
from tests.orbax_trees import save_pytree
from tests.robustness.crash.killing import Point, run_killed

HOLDING = """
import os, select, sys
from reshard.engine import task_stream
from reshard.storage.local.transaction import LocalTransaction
from reshard.cli import main
task_stream.BATCH_TASKS = 1
append, calls = LocalTransaction.append, []

def held(self, finished):
    append(self, finished)
    calls.append(1)
    if len(calls) == 3:
        os.write(1, b"midway\\n")  # a signal within print() would leave the line in its buffer, to come again
        while not select.select([0], [], [], 0.1)[0]:
            pass  # Python sees here a signal that came just before the wait, which would not end the wait

LocalTransaction.append = held
main()
"""


def start_held(
    source: Path, target: Path, *words: str, script: str = HOLDING
) -> subprocess.Popen[str]:
    """The command in a process of its own, which waits after its third task until its input ends."""
    command = [sys.executable, "-c", script, "convert", str(source), str(target), *words]
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "midway\n"
    return child


IN_PROCESSES = f"{CODE}\n{HOLDING}"
MANY = ("--workers", "4", "--max-memory", "1GiB")


def children(pid: int) -> set[int]:
    """The processes that a process started and that have not ended."""
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(word) for path in paths for word in path.read_text().split()}


SCRIPTS = {"threads": HOLDING, "processes": IN_PROCESSES}
SAID = {
    signal.SIGTERM: (143, "terminated", "SIGTERM"),
    signal.SIGINT: (130, "interrupted", "KeyboardInterrupt"),
}


@pytest.mark.parametrize(("number", "workers"), singly([*SAID], [*SCRIPTS]))
def test_a_signal_ends_a_run_in_order(number, workers, sources, tmp_path):
    """The signal reaches the whole group, as Ctrl-C at a terminal does."""
    script, (code, word, kind) = SCRIPTS[workers], SAID[number]
    target = tmp_path / "t"
    child = start_held(sources["raw"], target, "--json", *MANY, script=script)
    workers = children(child.pid)
    assert len(workers) == (2 if script == IN_PROCESSES else 0)
    os.killpg(child.pid, number)
    out, err = child.communicate(timeout=60)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert (child.returncode, err) == (code, "")
    said = json.loads(out)["error"]
    assert said["type"] == kind
    assert said["message"].startswith(f"{word}; no target was published; what is done (")
    assert "run the same again to resume it, or start over (--restart)" in said["message"]
    assert not target.exists()
    assert resumed(sources["raw"], target, script) > 0
    assert reshard.verify(sources["raw"], target).differences == 0


def resumed(source: Path, target: Path, script: str) -> int:
    """The bytes that a run in threads or in processes, as the script's, takes over from the one before."""
    with pytest.MonkeyPatch.context() as patch:
        if script == IN_PROCESSES:
            run_in_processes(patch)
        return reshard.convert(source, target, **OPTIONS).resumed_bytes


@pytest.mark.parametrize("number", rarely([signal.SIGKILL, signal.SIGSEGV]), ids=str)
def test_a_process_of_ours_that_is_killed(number, tmp_path):
    """As the kernel does where memory runs out: the run says so, and the next one resumes it.

    Many more tasks than are handed out before the run is held, so that some meet the process that is gone.
    """
    tree = {f"w{i}": np.full(64, i, np.float32) for i in range(60)}
    source, target = save_pytree(tmp_path / "source", tree, use_ocdbt=False), tmp_path / "t"
    child = start_held(source, target, *MANY, script=IN_PROCESSES)
    first, other = children(child.pid)
    os.kill(first, number)
    _, err = child.communicate("\n", timeout=60)
    assert child.returncode == 1
    assert f"(process {first} was ended by signal {int(number)}); a worker may have been" in err
    assert "Traceback" not in err
    assert not Path(f"/proc/{other}").exists()
    assert not target.exists()
    assert resumed(source, target, IN_PROCESSES) > 0
    assert reshard.verify(source, target).differences == 0


def test_processes_of_a_holder_that_died_end_too(sources, tmp_path):
    target = tmp_path / "t"
    child = start_held(sources["raw"], target, *MANY, script=IN_PROCESSES)
    workers = children(child.pid)
    child.kill()
    child.communicate(timeout=60)
    assert resumed(sources["raw"], target, IN_PROCESSES) > 0
    assert reshard.verify(sources["raw"], target).differences == 0
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


TIDYING = """
import time

try:
    main()
finally:
    print("tidying", flush=True)
    time.sleep(60)
"""


def test_a_second_signal_kills(sources, tmp_path):
    """No traceback, and no thread that writes on after the lock was given up."""
    target, script = tmp_path / "t", HOLDING.replace("main()", TIDYING)
    child = start_held(sources["raw"], target, script=script)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "tidying\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT
    assert "Traceback" not in err
    assert reshard.convert(sources["raw"], target, max_memory="1GiB").resumed_bytes > 0


def test_workers_that_stand_in_another_folder(sources, tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    with ProcessPoolExecutor(1, get_context("forkserver")) as executor:
        executor.submit(abs, 1).result()
        monkeypatch.chdir(tmp_path / "second")
        reshard.convert(os.path.relpath(sources["raw"]), "t", executor=executor, parts=2)
    assert list((tmp_path / "first").iterdir()) == []
    assert reshard.verify(sources["raw"], tmp_path / "second" / "t").differences == 0


def test_of_two_runs_one_works_and_the_other_names_it(sources, tmp_path):
    target = tmp_path / "t"
    child = start_held(sources["raw"], target)
    text = rf"another run \(process {child.pid}\) is writing '{target}' now; wait for it to end"
    for options in ({}, {"restart": True}, {"compression": "zstd"}):
        with pytest.raises(StorageError, match=text):
            reshard.convert(sources["raw"], target, **options)
    assert staging_for(target).journal.exists()
    child.communicate(timeout=60)
    assert child.returncode == 0
    assert reshard.convert(sources["raw"], target).already_done


def test_a_holder_that_died_frees_the_target(sources, tmp_path):
    target = tmp_path / "t"
    child = start_held(sources["raw"], target)
    child.kill()
    child.communicate(timeout=60)
    assert reshard.convert(sources["raw"], target, restart=True).resumed_bytes == 0
    assert reshard.verify(sources["raw"], target).differences == 0


@pytest.mark.parametrize("step", ["plan_targets", "lock_target"])
def test_a_run_that_waited_for_nothing_finds_the_other_ones_result(
    sources, tmp_path, monkeypatch, step
):
    """The first publishes after the second has looked for a target: before it plans, or takes the lock."""
    module = {"plan_targets": convert_module, "lock_target": open_target}[step]
    target, usual = tmp_path / "t", getattr(module, step)

    def late(*arguments, **options):
        monkeypatch.setattr(module, step, usual)
        assert not reshard.convert(sources["raw"], target).already_done
        return usual(*arguments, **options)

    monkeypatch.setattr(module, step, late)
    assert reshard.convert(sources["raw"], target).already_done
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_run_that_waited_for_nothing_finds_another_result(sources, tmp_path, monkeypatch):
    """What appeared meanwhile is some other conversion's."""
    target, usual = tmp_path / "t", convert_module.plan_targets

    def late(*arguments, **options):
        monkeypatch.setattr(convert_module, "plan_targets", usual)
        reshard.convert(sources["raw"], target, compression="zstd")
        return usual(*arguments, **options)

    monkeypatch.setattr(convert_module, "plan_targets", late)
    with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
        reshard.convert(sources["raw"], target)


def test_many_at_once_give_one_result(sources, tmp_path, monkeypatch):
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)
    target, begun = tmp_path / "t", threading.Barrier(4)

    def one(_: int) -> bool | str:
        begun.wait(60)
        try:
            return reshard.convert(sources["raw"], target).already_done
        except ReshardError as error:
            return str(error)

    with ThreadPoolExecutor(4) as threads:
        ended = list(threads.map(one, range(4)))
    assert ended.count(False) == 1
    assert all(e in (True, False) or "is writing" in str(e) for e in ended)
    assert reshard.verify(sources["raw"], target).differences == 0
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_an_undisturbed_run_ends_with_0(sources, tmp_path):
    """Of the tests that kill: without a point they finish."""
    assert run_killed(None, sources["raw"], tmp_path / "t") == 0
    never = Point("reshard.storage.local.transaction:LocalTransaction.append", "before", 10**6)
    assert run_killed(never, sources["raw"], tmp_path / "u") == 0
