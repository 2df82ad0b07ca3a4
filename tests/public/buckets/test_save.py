"""Live arrays are saved straight to buckets: every process puts its own chunks, and process 0 publishes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import reshard
from reshard.errors import (
    IncompleteCheckpointError,
    PlanError,
    StorageError,
    TargetBusyError,
    TargetExistsError,
)
from reshard.saving import run
from tests.campaigns import rarely, singly
from tests.emulators.apis.error_answers import ACCESS_DENIED
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Refuse
from tests.orbax_trees import put
from tests.saving.states import assert_same, leaves, random, tables, training_state

ROOT = Path(__file__).parents[3]


SERVERS = ("s3_bucket", "gcs_bucket")


@pytest.fixture(params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


def keys(bucket: Bucket) -> list[str]:
    return sorted(one["path"] for page in bucket.store().list() for one in page)


def content(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    return {
        key.removeprefix(prefix): bytes(bucket.store().get(key).bytes())
        for key in keys(bucket)
        if key.startswith(prefix)
    }


def state(scale: float = 1.0) -> dict[str, Any]:
    return {"w": put(random(64, 64) * np.float32(scale), "data", "model"), "count": 3}


def check(url: str, scale: float = 1.0, **where: Any) -> None:
    found = reshard.restore(url, like=state(), **where)
    assert_same(found["w"], state(scale)["w"])
    assert found["count"] == 3


@pytest.mark.parametrize(
    ("bucket", "options"),
    singly(SERVERS, [{}, {"compression": "zstd", "style": "v1"}]),
    indirect=["bucket"],
)
def test_what_is_saved_is_what_a_disk_gets(
    options: dict[str, Any], bucket: Bucket, tmp_path: Path
) -> None:
    tree = {"state": training_state(), "tables": tables()}
    reshard.save(f"{bucket.url}/run/7", tree, **options)
    reshard.save(tmp_path / "c", tree, **options)
    local = {
        f"/{p.relative_to(tmp_path / 'c')}": p.read_bytes()
        for p in (tmp_path / "c").rglob("*")
        if p.is_file()
    }
    found = content(bucket, "run/7")
    assert found.keys() == local.keys()
    assert len(keys(bucket)) == len(local)  # nothing else is left
    timed = {"/_CHECKPOINT_METADATA", "/slices.json"}  # the time of saving, and a digest of it
    assert {name for name in local if found[name] != local[name]} <= timed
    assert {t.status for t in reshard.verify(f"{bucket.url}/run/7").tensors} == {"recorded"}
    restored = leaves(reshard.restore(f"{bucket.url}/run/7")["state"])
    wanted = leaves(reshard.restore(tmp_path / "c")["state"])
    assert restored.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            assert_same(jax.random.key_data(restored[name]), jax.random.key_data(value), name)
        elif isinstance(value, jax.Array | np.ndarray):
            assert_same(restored[name], value, name)
        else:
            assert restored[name] == value, name


def test_the_marker_is_put_last(bucket: Bucket) -> None:
    reshard.save(f"{bucket.url}/run", state(), step=7)
    puts = [one.key for one in bucket.emulator.log.of("put") if one.key.startswith("run/7/")]
    assert puts[0] == "run/7/reshard_unfinished.txt"
    assert puts[-1] == "run/7/commit_success.txt"
    assert puts.index("run/7/default/commit_success.txt") > puts.index("run/7/default/_METADATA")


def test_what_is_there_is_replaced_only_where_it_is_asked(bucket: Bucket) -> None:
    url = f"{bucket.url}/run/7"
    reshard.save(url, state())
    before = content(bucket, "")
    with pytest.raises(TargetExistsError, match=rf"{url} exists already and was left untouched"):
        reshard.save(url, state(2))
    assert content(bucket, "") == before
    reshard.save(url, {"w": state(2)["w"], "count": 3}, overwrite=True)
    check(url, 2)
    bucket.store().put("run/8/notes.txt", b"mine")
    for overwrite in False, True:
        with pytest.raises(TargetExistsError, match="left untouched"):
            reshard.save(f"{bucket.url}/run/8", state(), overwrite=overwrite)
    assert content(bucket, "run/8") == {"/notes.txt": b"mine"}


def test_steps_of_a_run(bucket: Bucket) -> None:
    run = f"{bucket.url}/run"
    reshard.save(run, state(5), step=5)
    saving = reshard.save(run, state(6), step=6, wait=False)
    assert saving is not None
    saving.wait()
    assert reshard.steps(run) == {5: "5", 6: "6"}
    check(run, 6, step="latest")
    with pytest.raises(TargetExistsError) as caught:
        reshard.save(run, state(), step=5)
    assert str(caught.value) == (
        f"step 5 of {run!r} exists already ('5') and was left untouched; save another step, or ask to overwrite it (overwrite)"
    )
    reshard.save(run, state(9), step=5, overwrite=True)
    check(run, 9, step=5)
    with pytest.raises(StorageError, match="is a checkpoint itself, so step 1 cannot be saved in"):
        reshard.save(f"{run}/5", state(), step=1)
    reshard.save(f"{bucket.url}/padded/ckpt_0001", state(), style="v0")
    reshard.save(f"{bucket.url}/padded", state(2), step=2)
    assert reshard.steps(f"{bucket.url}/padded") == {1: "ckpt_0001", 2: "ckpt_0002"}


@pytest.mark.parametrize(
    ("below", "options", "kind", "message"),
    [
        ("/run/7", {"ocdbt": True}, PlanError, "an OCDBT database is not written to a bucket; leave it out"),
        ("", {}, StorageError, "is a whole bucket; name a folder in it"),
        ("/run//7", {}, StorageError, "empty part"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_refused_before_anything_is_put(
    below: str, options: dict[str, Any], kind: type, message: str, s3_bucket: Bucket
) -> None:
    with pytest.raises(kind, match=message):
        reshard.save(f"{s3_bucket.url}{below}", state(), **options)
    assert not s3_bucket.emulator.log.count("put")


def test_an_object_of_the_same_name_is_left_alone(s3_bucket: Bucket) -> None:
    s3_bucket.store().put("run/7", b"mine")
    with pytest.raises(TargetExistsError, match="run/7 is an object and was left untouched"):
        reshard.save(f"{s3_bucket.url}/run/7", state())
    assert content(s3_bucket, "") == {"run/7": b"mine"}


@pytest.mark.parametrize("wait", [True, False])
def test_after_an_error_nothing_is_left_and_the_next_save_works(wait: bool, bucket: Bucket) -> None:
    url = f"{bucket.url}/run/7"
    rule = bucket.emulator.faults.add(
        Refuse(ACCESS_DENIED), operation="put", key="run/7/w/c", nth=3
    )
    tree = {"w": put(random(256, 1024), "data", None)}

    def save() -> None:
        saving = reshard.save(url, tree, chunk_bytes=256 << 10, wait=wait)
        if saving is not None:
            saving.wait()

    with pytest.raises(StorageError, match=r"cannot write .*/run/7/w/c"):
        save()
    assert rule.struck
    assert keys(bucket) == []
    save()
    assert_same(reshard.restore(url, like=tree)["w"], tree["w"])


@pytest.mark.parametrize("bucket", rarely(SERVERS), indirect=True)
def test_a_save_that_is_killed_is_no_checkpoint_and_the_next_replaces_it(bucket: Bucket) -> None:
    url = f"{bucket.url}/run/7"
    program = """
        import os, sys
        import numpy as np
        import reshard
        from reshard.saving import run
        run.check_saved = lambda *_: os._exit(9)
        reshard.save(sys.argv[1], {"w": np.arange(8.0), "old": np.arange(3)})
    """
    assert started(program, url).returncode == 9
    assert "run/7/old/c.0" in keys(bucket)
    assert not reshard.is_checkpoint(url)
    with pytest.raises(IncompleteCheckpointError, match=r"has reshard_unfinished\.txt but no"):
        reshard.inspect(url)
    reshard.save(url, state())
    check(url)
    assert {key.partition("/7/")[0] for key in keys(bucket)} == {"run"}
    assert "run/7/old/c.0" not in keys(bucket)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Functions that are called once all chunks are put, before they are checked."""
    calls: list[Any] = []
    real = run.for_each

    def then(*arguments: Any) -> None:
        real(*arguments)
        for call in calls:
            call()

    monkeypatch.setattr("reshard.saving.run.for_each", then)
    yield calls
    assert calls


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda store, key: store.delete(key), r"tensor 'w', chunk \[1, 0\]: it was put below .*, but is not there now; nothing was"),
        (lambda store, key: store.put(key, b"other"), r"objects below .* are not those that were put; nothing was published"),
    ],
    ids=["deleted", "replaced"],
)  # fmt: skip
def test_objects_that_somebody_changes_meanwhile_are_missed(
    change: Any, message: str, bucket: Bucket, hook: list[Any]
) -> None:
    hook.append(lambda: change(bucket.store(), "run/7/w/c/1/0"))
    tree = {"w": put(random(256, 1024), "data", None)}
    with pytest.raises(StorageError, match=message):
        reshard.save(f"{bucket.url}/run/7", tree, chunk_bytes=256 << 10)
    assert keys(bucket) == []


def test_two_saves_do_not_mix(bucket: Bucket, hook: list[Any]) -> None:
    url = f"{bucket.url}/run/7"
    seen: list[str] = []

    def other() -> None:
        hook[:] = [lambda: None]
        with pytest.raises(TargetBusyError, match=r"another run \(process \d+ on .*\) is writing"):
            reshard.save(url, state(2), overwrite=True)
        seen.append(url)

    hook.append(other)
    reshard.save(url, state())
    assert seen
    check(url)


def test_chunks_fit_requests_and_the_memory(s3_bucket: Bucket) -> None:
    tree = {"w": np.zeros((64, 1 << 18), np.float32)}
    with pytest.raises(reshard.MemoryBudgetError) as caught:
        reshard.save(f"{s3_bucket.url}/a", tree, max_memory="8MiB")
    reshard.save(f"{s3_bucket.url}/a", tree, max_memory=caught.value.smallest_bytes)
    found = reshard.inspect(f"{s3_bucket.url}/a").tensors["w"].spec
    assert found.chunk_shape == (8, 1 << 18)  # 8 MiB
    reshard.save(f"{s3_bucket.url}/b", tree, max_memory="512MiB")
    found = reshard.inspect(f"{s3_bucket.url}/b").tensors["w"].spec
    assert found.chunk_shape == (16, 1 << 18)


def started(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *words],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_the_interpreter_waits_for_a_save_before_it_exits(gcs_bucket: Bucket) -> None:
    program = """
        import sys, time
        import numpy as np
        import reshard
        from reshard.saving import run
        real = run.check_saved
        def slow(*args):
            time.sleep(0.5)
            return real(*args)
        run.check_saved = slow
        reshard.save(sys.argv[1], {str(n): np.full(3, n) for n in range(9)}, wait=False, workers=2)
        sys.exit(0)
    """
    done = started(program, f"{gcs_bucket.url}/run/7")
    assert (done.returncode, done.stderr) == (0, "")
    assert reshard.restore(f"{gcs_bucket.url}/run/7")["8"].tolist() == [8, 8, 8]


def test_a_forked_process_says_that_it_cannot_save(s3_bucket: Bucket) -> None:
    program = """
        import os, sys
        import numpy as np
        import reshard
        reshard.is_checkpoint(sys.argv[1])
        child = os.fork()
        if child == 0:
            try:
                reshard.save(sys.argv[1], {"w": np.ones(3)})
            except reshard.StorageError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """
    done = started(program, f"{s3_bucket.url}/run/7")
    assert "this process was forked from one that had used a bucket" in done.stdout, done.stderr
    assert keys(s3_bucket) == []
