"""Stock Orbax on gs:// is the referee: what it writes there is read, and what reshard writes is restored by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import obstore
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.errors import IncompleteCheckpointError, StorageError
from reshard.saving import run as saving_run
from tests.emulators.apis.error_answers import ACCESS_DENIED
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call, Refuse
from tests.equal import assert_same
from tests.oracles.oracle import Oracle, RefusedError
from tests.orbax_trees import (
    random_array,
    save_manager_items,
    save_standard,
    save_v1,
)
from tests.public.buckets.uploads import MARKER, download, upload

pytestmark = pytest.mark.xdist_group("cloud")

RNG = np.random.default_rng(0)
Leaves = list[tuple[str, np.ndarray]]
LEAVES: Leaves = [
    ("params/dense/kernel", RNG.normal(size=(64, 48)).astype(np.float32)),
    ("params/dense/bias", RNG.normal(size=8).astype(ml_dtypes.bfloat16)),
    ("params/odd", random_array(RNG, (7, 3, 5), "float8_e4m3fn")),
    ("opt/mu/kernel", RNG.normal(size=(64, 48)).astype(np.float16)),
    ("opt/count", np.array(7, np.int32)),
    ("opt/mask", RNG.integers(0, 2, (16, 2)).astype(bool)),
]
STEP = 12


def tree() -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, array in LEAVES:
        *folders, name = path.split("/")
        at = root
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = array
    return root


def assert_leaves(found: Any, expected: Leaves = LEAVES) -> None:
    """What the oracle restored, a list of paths and arrays, has every bit of what was saved."""
    assert sorted(path for path, _ in found) == sorted(path for path, _ in expected)
    for path, array in found:
        assert_same(array, dict(expected)[path], path)


def assert_tree(found: Any) -> None:
    for path, array in LEAVES:
        at = found
        for name in path.split("/"):
            at = at[name]
        assert_same(at, array, path)


def saved_by_orbax(cloud: Oracle, bucket: Bucket, how: str) -> str:
    """The URL of a checkpoint that stock Orbax wrote into a bucket."""
    url = f"{bucket.url}/run/saved"
    cloud.ask("save", how=how, url=url, leaves=LEAVES)
    return f"{url}/{STEP}" if how == "manager" else url


@pytest.mark.parametrize("how", ["standard", "plain", "ocdbt", "manager", "v1"])
def test_what_stock_orbax_writes_is_read(
    how: str, gcs_bucket: Bucket, cloud: Oracle, tmp_path: Path
) -> None:
    url = saved_by_orbax(cloud, gcs_bucket, how)
    keys = gcs_bucket.emulator.objects.bucket(gcs_bucket.name).keys
    if how == "ocdbt":
        assert sum("/d/" in key for key in keys) > 3  # several data files
    assert reshard.is_checkpoint(url)
    found = reshard.inspect(url)
    shapes = {path: array.shape for path, array in LEAVES}
    assert {path: one.spec.shape for path, one in found.tensors.items()} == shapes
    assert_tree(reshard.restore(url))
    reshard.plan(url, tmp_path / "out", workers=1)
    reshard.convert(url, tmp_path / "out", workers=1)
    assert reshard.verify(tmp_path / "out", url).differences == 0
    assert_tree(reshard.restore(tmp_path / "out"))


def test_steps_of_a_stock_manager_are_found(gcs_bucket: Bucket, cloud: Oracle) -> None:
    url = saved_by_orbax(cloud, gcs_bucket, "manager").rpartition("/")[0]
    assert reshard.steps(url) == {STEP: str(STEP)}
    assert_tree(reshard.restore(url, step="latest", item="state"))
    key = f"run/saved/{STEP}/{MARKER}"
    assert bytes(obstore.get(gcs_bucket.store(), key).bytes()).startswith(b"Checkpoint commit was successful")  # fmt: skip
    obstore.delete(gcs_bucket.store(), key)
    assert reshard.steps(url) == {}
    assert cloud.ask("steps", url=url) == []
    with pytest.raises(IncompleteCheckpointError, match=rf"has no {MARKER}"):
        reshard.inspect(f"{url}/{STEP}")


Put = Callable[..., str]


def copied(bucket: Bucket, source: Path, prefix: str, work: Path, items: tuple[str, ...], **options: Any) -> str:  # fmt: skip
    """Converted to a local folder, which is copied under a prefix with the markers last."""
    reshard.convert(source, work / "converted", workers=1, **options)
    return upload(bucket, work / "converted", prefix, items=items)


def written(bucket: Bucket, source: Path, prefix: str, work: Path, items: tuple[str, ...], **options: Any) -> str:  # noqa: ARG001  # fmt: skip
    """Converted straight into the bucket."""
    url = f"{bucket.url}/{prefix}"
    reshard.convert(source, url, workers=2, **options)
    return url


PLAIN: dict[str, Any] = {"to": "orbax"}
ZSTD = {"to": "orbax", "compression": "zstd", "chunk_bytes": 1000}
OCDBT = {"to": "orbax", "ocdbt": True}
PUTS = [
    pytest.param(copied, PLAIN, id="copied-plain"),
    pytest.param(copied, ZSTD, id="copied-zstd"),
    pytest.param(copied, OCDBT, id="copied-OCDBT"),
    pytest.param(written, PLAIN, id="written-plain"),
    pytest.param(written, ZSTD, id="written-zstd"),
]
"""How a checkpoint of reshard comes into a bucket, and in which form; OCDBT is not written there."""


@pytest.mark.parametrize(("put", "form"), PUTS)
@pytest.mark.parametrize(
    ("save", "readers"),
    [
        pytest.param(save_standard, ["standard", "pytree"], id="v0"),
        pytest.param(save_v1, ["v1"], id="v1"),
    ],
)
def test_what_reshard_writes_is_restored(
    save: Any, readers: list[str], form: dict[str, Any], put: Put, gcs_bucket: Bucket, cloud: Oracle, tmp_path: Path
) -> None:  # fmt: skip
    source = save(tmp_path / "source", tree())
    items = ("state",) if save is save_v1 else ()
    url = put(gcs_bucket, source, "run/7", tmp_path, items, **form)
    for how in readers:
        assert_leaves(cloud.ask("restore", how=how, url=url, leaves=LEAVES))
    assert_tree(reshard.restore(url))


@pytest.mark.parametrize(("put", "form"), PUTS)
def test_a_manager_restores_steps_with_items(
    form: dict[str, Any], put: Put, gcs_bucket: Bucket, cloud: Oracle, tmp_path: Path
) -> None:
    source = save_manager_items(tmp_path / "source", tree())
    url = put(gcs_bucket, source, f"run/{STEP}", tmp_path, ("state", "meta"), **form)
    run = f"{gcs_bucket.url}/run"
    assert cloud.ask("steps", url=run) == [STEP]
    assert_leaves(cloud.ask("restore", how="manager", url=run, leaves=LEAVES))
    # Items open by themselves, too.
    assert_leaves(cloud.ask("restore", how="standard", url=f"{url}/state", leaves=LEAVES))
    assert_tree(reshard.restore(url, item="state"))


@pytest.mark.parametrize("put", [copied, written], ids=["copied", "written"])
def test_without_the_marker_nobody_restores(
    put: Put, gcs_bucket: Bucket, cloud: Oracle, tmp_path: Path
) -> None:
    source = save_standard(tmp_path / "source", tree())
    url = put(gcs_bucket, source, f"run/{STEP}", tmp_path, ())
    obstore.delete(gcs_bucket.store(), f"run/{STEP}/{MARKER}")
    for how in ("standard", "pytree", "v1"):
        with pytest.raises(RefusedError, match=r"Found incomplete checkpoint|InvalidLayout"):
            cloud.ask("restore", how=how, url=url, leaves=LEAVES)
    assert cloud.ask("steps", url=f"{gcs_bucket.url}/run") == []
    with pytest.raises(IncompleteCheckpointError, match=rf"run/{STEP} has no {MARKER}"):
        reshard.restore(url)


def test_several_trees_are_restored(gcs_bucket: Bucket, cloud: Oracle, tmp_path: Path) -> None:
    trees = {"state": tree(), "ema": {"params": tree()["params"]}}
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        saved = {name: ocp.args.PyTreeSave(one) for name, one in trees.items()}
        manager.save(STEP, args=ocp.args.Composite(**saved))
        manager.wait_until_finished()
    url = written(gcs_bucket, tmp_path / "run" / str(STEP), f"run/{STEP}", tmp_path, ())
    assert_leaves(cloud.ask("restore", how="manager", url=f"{gcs_bucket.url}/run", leaves=LEAVES))
    averages = [(path, array) for path, array in LEAVES if path.startswith("params/")]
    found = cloud.ask("restore", how="standard", url=f"{url}/ema", leaves=averages)
    assert_leaves(found, averages)


def test_markers_are_put_last(gcs_bucket: Bucket, tmp_path: Path) -> None:
    source = save_manager_items(tmp_path / "source", tree())
    gcs_bucket.emulator.log.clear()
    written(gcs_bucket, source, f"run/{STEP}", tmp_path, ())
    begin = f"run/{STEP}/"
    puts = [one for one in gcs_bucket.emulator.log.of("put") if one.key.startswith(begin)]
    keys = [one.key.removeprefix(begin) for one in puts if one.status == 200]
    assert keys[-1] == MARKER
    assert puts[-1].headers["x-goog-if-generation-match"] == "0"
    for item in ("state", "meta", "metrics"):
        below = [key for key in keys if key.startswith(f"{item}/")]
        assert below[-1] == f"{item}/{MARKER}"


def test_an_unfinished_target_is_no_step(gcs_bucket: Bucket, cloud: Oracle, tmp_path: Path) -> None:
    """While it is written, and after the run stopped."""
    source = save_manager_items(tmp_path / "source", tree())
    run, faults = f"{gcs_bucket.url}/run", gcs_bucket.emulator.faults
    seen: list[Any] = []
    look = Call(lambda: seen.append(cloud.ask("steps", url=run)))
    faults.add(look, operation="put", key=rf"run/{STEP}/state/_METADATA$")
    faults.add(Refuse(ACCESS_DENIED), operation="put", key=rf"run/{STEP}/{MARKER}$", times=None)
    with pytest.raises(StorageError, match=rf"run/{STEP}/{MARKER}"):
        written(gcs_bucket, source, f"run/{STEP}", tmp_path, ())
    assert seen == [[]]
    assert cloud.ask("steps", url=run) == []
    faults.clear()
    written(gcs_bucket, source, f"run/{STEP}", tmp_path, ())
    assert cloud.ask("steps", url=run) == [STEP]
    assert_leaves(cloud.ask("restore", how="manager", url=run, leaves=LEAVES))


@pytest.mark.parametrize("how", ["plain", "ocdbt", "manager", "v1"])
def test_from_stock_orbax_to_stock_orbax_through_buckets(
    how: str, gcs_bucket: Bucket, s3_bucket: Bucket, cloud: Oracle, tmp_path: Path
) -> None:
    """gs:// to gs:// and to s3://, from where it is copied down, since stock Orbax takes no s3://."""
    source = saved_by_orbax(cloud, gcs_bucket, how)
    reader = {"manager": "manager", "v1": "v1"}.get(how, "pytree")
    reshard.convert(source, f"{gcs_bucket.url}/new/{STEP}", workers=2, **PLAIN)
    url = f"{gcs_bucket.url}/new" + ("" if how == "manager" else f"/{STEP}")
    assert_leaves(cloud.ask("restore", how=reader, url=url, leaves=LEAVES))
    reshard.convert(source, f"{s3_bucket.url}/new/{STEP}", workers=2, **ZSTD)
    assert reshard.verify(f"{s3_bucket.url}/new/{STEP}", source).differences == 0
    local = download(s3_bucket, f"new/{STEP}", tmp_path / "new" / str(STEP))
    place = str(local.parent if how == "manager" else local)
    assert_leaves(cloud.ask("restore", how=reader, url=place, leaves=LEAVES))


def test_what_reshard_saves_is_restored(gcs_bucket: Bucket, cloud: Oracle) -> None:
    run = f"{gcs_bucket.url}/run"
    reshard.save(f"{gcs_bucket.url}/saved", tree())
    reshard.save(run, tree(), step=STEP)
    for how, url in ("v1", f"{gcs_bucket.url}/saved"), ("standard", f"{run}/{STEP}/default"):
        assert_leaves(cloud.ask("restore", how=how, url=url, leaves=LEAVES))
    assert cloud.ask("steps", url=run) == [STEP]
    assert_tree(reshard.restore(run, step=STEP))


@pytest.mark.parametrize("place", ["copies", "run"], ids=["beside", "within"])
def test_a_save_while_a_manager_that_cleans_up_lives(
    place: str, gcs_bucket: Bucket, cloud: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes what has no marker in its own root: a save there ends with an error, one beside it is left alone."""
    run = f"{gcs_bucket.url}/run"
    real = saving_run.for_each

    def then_a_manager_begins(*arguments: Any) -> None:
        real(*arguments)
        cloud.ask("save", how="cleaning manager", url=run, leaves=LEAVES)

    monkeypatch.setattr("reshard.saving.run.for_each", then_a_manager_begins)
    if place == "run":
        with pytest.raises(
            StorageError, match=r"is not there now, or is another object; nothing was published"
        ):
            reshard.save(run, tree(), step=STEP + 1)
        with pytest.raises(StorageError):
            reshard.inspect(f"{run}/{STEP + 1}")
    else:
        reshard.save(f"{gcs_bucket.url}/{place}", tree(), step=STEP + 1)
        assert_tree(reshard.restore(f"{gcs_bucket.url}/{place}", step=STEP + 1))
    assert cloud.ask("steps", url=run) == [STEP]
    assert_leaves(cloud.ask("restore", how="manager", url=run, leaves=LEAVES))
