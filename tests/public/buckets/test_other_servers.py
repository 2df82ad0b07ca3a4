"""Whole conversions on emulators that are not this project's: moto for S3, Azurite for Azure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

import reshard
from reshard.errors import (
    CorruptError,
    IncompleteCheckpointError,
    MissingError,
    SourceChangedError,
    TargetExistsError,
)
from tests.conformance.forms import FORMS, Form
from tests.emulators.buckets import Bucket
from tests.equal import assert_same_trees
from tests.orbax_trees import save_manager_items, save_pytree
from tests.public.buckets.trees import LAYOUT, tree
from tests.public.buckets.uploads import MARKER, download, upload

SHARDED = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "kernel", "axes": [None, "x"]}]}  # fmt: skip
RNG = np.random.default_rng(0)
TREE = {
    "layer_0": {"kernel": RNG.normal(size=(64, 48)).astype("float32"), "bias": np.arange(6, dtype="int32")},
    "layer_1": {"kernel": RNG.normal(size=(48, 64)).astype("float32"), "bias": np.zeros(3, "float32")},
}  # fmt: skip
LARGE = {**TREE, "layer_2": {"kernel": RNG.normal(size=(2048, 1152)).astype("float32")}}
"""With one tensor of 9 MiB, which is read in several ranges."""

CHOSEN = [
    form
    for form in FORMS
    if form.title in {"Orbax, plain", "Orbax, OCDBT", "safetensors, one file"}
]


@pytest.fixture(
    params=[
        pytest.param("moto_bucket", id="moto", marks=pytest.mark.xdist_group("moto")),
        pytest.param("azurite_bucket", id="Azurite", marks=pytest.mark.xdist_group("azurite")),
    ]
)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("form", CHOSEN, ids=lambda form: form.id)
def test_a_checkpoint_is_converted(form: Form, bucket: Bucket, tmp_path: Path) -> None:
    local = tmp_path / f"local{form.ending}"
    reshard.convert(
        save_pytree(tmp_path / "saved", LARGE), local, layout=LAYOUT, workers=1, **form.options
    )
    url = upload(bucket, local, f"run/7{form.ending}")
    found, expected = reshard.inspect(url), reshard.inspect(local)
    assert list(map(repr, found.tensors.values())) == list(map(repr, expected.tensors.values()))
    planned = reshard.plan(url, tmp_path / "out", layout=SHARDED, workers=2)
    assert planned.plan.source_bytes == reshard.plan(local, tmp_path / "out", layout=SHARDED, workers=2).plan.source_bytes  # fmt: skip
    reshard.convert(url, tmp_path / "out", layout=SHARDED, workers=2)
    assert reshard.verify(tmp_path / "out", url).differences == 0
    assert reshard.verify(url).differences == 0
    assert_same_trees(reshard.restore(url), LARGE)
    assert_same_trees(reshard.restore(tmp_path / "out"), LARGE)


def test_steps_and_items(bucket: Bucket, tmp_path: Path) -> None:
    local = save_manager_items(tmp_path / "run", TREE)
    upload(bucket, local, "run/12")
    upload(bucket, local, "run/13", marker=False)
    run = f"{bucket.url}/run"
    assert reshard.steps(run) == {12: "12"}
    assert_same_trees(reshard.restore(run, step="latest", item="state"), TREE)
    reshard.convert(run, tmp_path / "out", step="latest", workers=1)
    assert reshard.verify(tmp_path / "out", local).differences == 0
    with pytest.raises(IncompleteCheckpointError, match=rf"run/13 has no {MARKER}"):
        reshard.restore(f"{run}/13")
    for name in ("1", "14", "12/none"):
        with pytest.raises(MissingError, match=rf"run/{name} does not exist"):
            reshard.restore(f"{run}/{name}")


def opened(bucket: Bucket, tmp_path: Path) -> tuple[Any, str]:
    """An opened checkpoint, and the key of its largest file."""
    local = tmp_path / "local"
    reshard.convert(save_pytree(tmp_path / "saved", TREE), local, workers=1, to="safetensors", files="shards")  # fmt: skip
    url = upload(bucket, local, "run")
    key = next(str(path.relative_to(local)) for path in local.rglob("*.safetensors"))
    return reshard.open_checkpoint(url), f"run/{key}"


def test_a_source_that_changes_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    checkpoint, key = opened(bucket, tmp_path)
    data = bytearray(obstore.get(bucket.store(), key).bytes())
    data[-5] ^= 1
    obstore.put(bucket.store(), key, bytes(data), use_multipart=False)
    with pytest.raises(SourceChangedError, match="changed after it was first looked at"):
        checkpoint.restore(workers=1)
    with pytest.raises(CorruptError, match="digest"):
        reshard.convert(f"{bucket.url}/run", tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def keys(bucket: Bucket) -> list[str]:
    return sorted(one["path"] for page in obstore.list(bucket.store()) for one in page)


WRITTEN: list[Any] = [
    pytest.param({"compression": "zstd", "chunk_bytes": 2 << 20}, id="zstd"),
    # Of one file of 9 MiB, which is uploaded in parts.
    pytest.param({"to": "safetensors", "files": "shards"}, id="safetensors"),
]


@pytest.mark.parametrize("options", WRITTEN)
def test_from_the_bucket_to_the_bucket(
    options: dict[str, Any], bucket: Bucket, tmp_path: Path
) -> None:
    source = upload(bucket, save_pytree(tmp_path / "saved", LARGE), "run/7")
    target = f"{bucket.url}/new/7"
    before = {key for key in keys(bucket) if key.startswith("run/")}
    reshard.plan(source, target, layout=LAYOUT, **options)
    report = reshard.convert(source, target, layout=LAYOUT, **options)
    assert report.target == target
    assert reshard.verify(target, source).differences == 0
    assert reshard.verify(target).differences == 0
    assert_same_trees(reshard.restore(target), LARGE)
    assert {key for key in keys(bucket) if not key.startswith("new/7/")} == before
    assert reshard.convert(source, target, layout=LAYOUT, **options).already_done
    local = download(bucket, "new/7", tmp_path / "down")
    assert_same_trees(reshard.restore(local), LARGE)


def test_a_target_is_replaced_only_if_asked(bucket: Bucket, tmp_path: Path) -> None:
    target = f"{bucket.url}/new/7"
    small = {"kernel": TREE["layer_0"]["kernel"]}
    reshard.convert(save_pytree(tmp_path / "saved", TREE), target)
    other = save_pytree(tmp_path / "small", small)
    with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
        reshard.convert(other, target)
    assert_same_trees(reshard.restore(target), TREE)
    reshard.convert(other, target, overwrite=True)
    assert_same_trees(reshard.restore(target), small)
    assert not [key for key in keys(bucket) if "layer_1" in key]


def test_a_run_that_stops_resumes(bucket: Bucket, tmp_path: Path) -> None:
    source, target = save_pytree(tmp_path / "saved", tree(14)), f"{bucket.url}/new/7"

    def stop(progress: reshard.Progress) -> None:
        if progress.tasks_done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard.convert(source, target, workers=1, progress=stop)
    assert not reshard.is_checkpoint(target)
    with pytest.raises(IncompleteCheckpointError, match=r"has reshard_unfinished\.txt but no"):
        reshard.restore(target)
    assert reshard.convert(source, target, workers=1).resumed_bytes > 0
    assert_same_trees(reshard.restore(target), tree(14))
    assert all(key.startswith("new/7/") for key in keys(bucket))


def test_between_two_clouds(bucket: Bucket, gcs_bucket: Bucket, tmp_path: Path) -> None:
    source = upload(bucket, save_pytree(tmp_path / "saved", TREE), "run/7")
    reshard.convert(source, f"{gcs_bucket.url}/new/7", layout=LAYOUT)
    reshard.convert(f"{gcs_bucket.url}/new/7", f"{bucket.url}/back/7", layout=SHARDED)
    assert reshard.verify(f"{bucket.url}/back/7", source).differences == 0
    assert reshard.verify(f"{gcs_bucket.url}/new/7", source).differences == 0
