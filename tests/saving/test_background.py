"""wait=False saves the values of the tree at the time of the call, whatever happens to it afterwards."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1

import reshard
from reshard.saving import run
from reshard.storage import target as target_place
from tests.orbax_trees import put
from tests.saving.states import random

ROOT = Path(__file__).parents[2]


@pytest.fixture
def held(monkeypatch):
    """An event without which no chunk is written."""
    go = threading.Event()
    real = run.host_chunk

    def waits(*args):
        assert go.wait(60)
        return real(*args)

    monkeypatch.setattr(run, "host_chunk", waits)
    yield go
    go.set()


def test_donated_deleted_and_overwritten_arrays_are_saved_as_they_were(tmp_path, held):
    values = random(512, 256)
    tree = {
        "donated": put(values, "data", "model"),
        "deleted": put(values, "data"),
        "single": jax.device_put(values, jax.devices()[2]),
        "numpy": values.copy(),
        "table": reshard.ShardedVariable.split(jnp.asarray(values), 3, partition_strategy="mod"),
    }
    handle = reshard.save(tmp_path / "c", tree, wait=False)
    change = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    for _ in range(4):
        tree["donated"] = change(tree["donated"])
        tree["single"] = change(tree["single"])
    tree["deleted"].delete()
    for shard in tree["table"].variables:
        shard.delete()
    tree["numpy"][:] = -1
    assert not handle.done()
    assert not (tmp_path / "c").exists()
    held.set()
    assert handle.wait() is None
    assert handle.done()
    found = v1.load(tmp_path / "c")
    for name in tree:
        np.testing.assert_array_equal(np.asarray(found[name]), values, err_msg=name)


def test_after_a_save_arrays_can_be_donated_in_place(tmp_path):
    """No view of their memory is left, which would make a donating step copy them."""
    for wait in (True, False):
        array = put(random(1024, 256), "data", "model")
        handle = reshard.save(tmp_path / str(wait), {"x": array}, wait=wait)
        if handle is not None:
            handle.wait()
        places = [s.data.unsafe_buffer_pointer() for s in array.addressable_shards]
        new = jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(array))
        assert array.is_deleted()
        assert [s.data.unsafe_buffer_pointer() for s in new.addressable_shards] == places


def test_two_saves_at_once(tmp_path, held):
    handles = [
        reshard.save(tmp_path / name, {"x": np.full(5, n)}, wait=False)
        for n, name in enumerate("ab")
    ]
    held.set()
    for handle in handles:
        handle.wait()
    assert [v1.load(tmp_path / name)["x"][0] for name in "ab"] == [0, 1]


def test_two_saves_to_one_path_are_refused(tmp_path, held):
    handle = reshard.save(tmp_path / "c", {"x": np.ones(3)}, wait=False)
    with pytest.raises(reshard.StorageError, match=r"is writing .* now; wait for it to end"):
        reshard.save(tmp_path / "c", {"x": np.zeros(3)})
    held.set()
    handle.wait()
    np.testing.assert_array_equal(v1.load(tmp_path / "c")["x"], np.ones(3))


def test_a_failure_is_raised_by_wait_each_time_and_logged(tmp_path, monkeypatch, caplog):
    def refused(path):
        raise reshard.StorageError(f"cannot create {path!r}: refused")

    monkeypatch.setattr(target_place, "open_new", refused)
    handle = reshard.save(tmp_path / "c", {"x": np.ones(3)}, wait=False)
    for _ in range(2):
        with pytest.raises(reshard.StorageError, match="refused"):
            handle.wait()
    assert handle.done()
    assert "saving" in caplog.text and "refused" in caplog.text
    assert not list(tmp_path.iterdir())


def test_the_interpreter_waits_for_a_save_before_it_exits(tmp_path):
    program = f"""
        import sys, time
        import numpy as np
        import reshard
        from reshard.saving import run
        real = run.host_chunk
        def slow(*args):
            time.sleep(0.2)
            return real(*args)
        run.host_chunk = slow
        reshard.save({str(tmp_path / "c")!r}, {{str(n): np.full(3, n) for n in range(9)}},
                     wait=False, compression="blosc", workers=2)
        sys.exit(0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert v1.load(tmp_path / "c")["8"].tolist() == [8, 8, 8]


def test_a_save_without_memory_for_its_copies_writes_nothing(tmp_path, monkeypatch):
    def no_memory(*_):
        raise MemoryError("no memory for a copy")

    monkeypatch.setattr("reshard.saving.run.keep_data", no_memory)
    with pytest.raises(MemoryError, match="no memory for a copy"):
        reshard.save(tmp_path / "c", {"x": np.ones(3)}, wait=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("wait", [True, False])
def test_a_system_that_gives_no_threads_takes_longer(tmp_path, monkeypatch, threads, wait):
    """The work is done by the threads that there are, at last by the caller's own."""
    start, begun = threading.Thread.start, []

    def rationed(thread):
        if len(begun) == threads:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    tree = {"a": random(300, 300), "b": random(7)}
    monkeypatch.setattr(threading.Thread, "start", rationed)
    handle = reshard.save(tmp_path / "c", tree, wait=wait, workers=4, chunk_bytes="64KiB")
    if handle is not None:
        handle.wait()
        assert handle.done()
    monkeypatch.undo()
    assert len(begun) == threads
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    for name, array in reshard.restore(tmp_path / "c").items():
        np.testing.assert_array_equal(array, tree[name])
