"""Checkpoints in buckets are read like local ones, in few requests, and never while they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pytest

import reshard
from reshard.errors import IncompleteCheckpointError, MissingError, SourceChangedError
from tests.campaigns import singly
from tests.checkpoint_files import files_without_times
from tests.conformance.forms import FORMS, Form
from tests.emulators.buckets import Bucket
from tests.equal import assert_same_trees
from tests.formats.safetensors.build import sharded
from tests.in_processes import OPTIONS, run_in_processes
from tests.orbax_trees import Save, save_manager_items, save_modes, save_pytree, small_tree
from tests.public.buckets.trees import in_form, tree
from tests.public.buckets.uploads import upload


@pytest.mark.parametrize(("form", "lent"), singly([*FORMS], ["gcs_bucket", "s3_bucket"]))
def test_every_form_is_read_as_from_a_disk(
    form: Form, lent: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bucket: Bucket = request.getfixturevalue(lent)
    local = in_form(tmp_path, form)
    url = upload(bucket, local, f"run/7{form.ending}")
    found, expected = reshard.inspect(url), reshard.inspect(local)
    assert (found.uri, found.format) == (url, expected.format)
    assert list(found.tensors) == list(expected.tensors)
    assert list(map(repr, found.tensors.values())) == list(map(repr, expected.tensors.values()))
    assert_same_trees(reshard.restore(url), reshard.restore(local))
    verified = reshard.verify(url, local)
    assert verified.differences == 0
    assert not verified.damage
    assert reshard.verify(url).differences == 0
    for source, target in (local, "from_disk"), (url, "from_bucket"):
        reshard.convert(source, tmp_path / target, workers=1, to="safetensors", files="shards")
    assert reshard.verify(tmp_path / "from_disk", tmp_path / "from_bucket").differences == 0
    assert reshard.convert(
        url, tmp_path / "from_bucket", workers=1, to="safetensors", files="shards"
    ).already_done


def test_an_index_and_steps_of_safetensors(s3_bucket: Bucket, tmp_path: Path) -> None:
    """An object appears whole, so that a step counts once the last file that its index names is there."""
    local = sharded(tmp_path / "hf")
    url = upload(s3_bucket, local, "run/checkpoint-500")
    index = f"{url}/model.safetensors.index.json"
    assert_same_trees(reshard.restore(index), reshard.restore(local))
    reshard.convert(index, tmp_path / "out", to="orbax")
    assert reshard.verify(index, tmp_path / "out").differences == 0
    assert reshard.convert(index, tmp_path / "out", to="orbax").already_done
    run = url.rpartition("/")[0]
    assert reshard.steps(run) == {500: "checkpoint-500"}
    assert reshard.locate(run, step="latest") == url
    obstore.delete(s3_bucket.store(), "run/checkpoint-500/model-00002-of-00002.safetensors")
    assert reshard.steps(run) == {}
    with pytest.raises(MissingError, match=r"but .*checkpoint-500 has no such file"):
        reshard.inspect(index)


@pytest.fixture(scope="module")
def small_state() -> dict[str, Any]:
    return small_tree()


@pytest.mark.parametrize(
    ("mode", "save"), [m for m in save_modes() if "manager" not in m[0]], ids=lambda v: v if isinstance(v, str) else ""
)  # fmt: skip
def test_what_stock_orbax_saves_is_read(
    mode: str, save: Save, gcs_bucket: Bucket, small_state: dict[str, Any], tmp_path: Path
) -> None:
    local = save(tmp_path / "saved", small_state)
    url = upload(gcs_bucket, local, "saved")
    assert_same_trees(reshard.restore(url), reshard.restore(local))
    for source, target in (local, "a"), (url, "b"):
        reshard.convert(source, tmp_path / target, workers=1)
    made = [files_without_times(tmp_path / name) for name in "ab"]
    for files in made:
        for name in [n for n in files if n.endswith("slices.json")]:
            del files[name]  # names the conversion, and so the source
    assert made[0] == made[1], mode


@pytest.mark.usefixtures("gcs_bucket")
def test_without_its_marker_nothing_is_a_checkpoint(gcs_bucket: Bucket, tmp_path: Path) -> None:
    local = save_pytree(tmp_path / "c", tree(1))
    url = upload(gcs_bucket, local, "run/1", marker=False)
    upload(gcs_bucket, local, "run/2")
    with pytest.raises(
        IncompleteCheckpointError, match=r"run/1 has no commit_success\.txt"
    ) as caught:
        reshard.inspect(url)
    assert str(caught.value).endswith(
        "If it is a copy of a complete one from a disk, where older versions of Orbax write no such file: when all files are "
        "copied, put an empty commit_success.txt at its top, last"
    )
    obstore.put(gcs_bucket.store(), "run/1/commit_success.txt", b"", use_multipart=False)
    assert reshard.is_checkpoint(url)
    obstore.delete(gcs_bucket.store(), "run/1/commit_success.txt")
    assert not reshard.is_checkpoint(url)
    assert reshard.steps(f"{gcs_bucket.url}/run") == {2: "2"}
    found = reshard.inspect(f"{gcs_bucket.url}/run", step="latest")
    assert found.uri == f"{gcs_bucket.url}/run/2"


def test_items_travel_and_open_with_their_own_marker(gcs_bucket: Bucket, tmp_path: Path) -> None:
    local = save_manager_items(tmp_path / "run", tree(1))
    url = upload(gcs_bucket, local, "run/3")
    reshard.convert(url, tmp_path / "out", workers=1)
    assert reshard.verify(tmp_path / "out", local).differences == 0
    assert (tmp_path / "out/meta/metadata").read_bytes() == (local / "meta/metadata").read_bytes()
    assert_same_trees(reshard.restore(url, item="state"), tree(1))
    obstore.delete(gcs_bucket.store(), "run/3/state/commit_success.txt")
    with pytest.raises(IncompleteCheckpointError, match=r"state has no commit_success\.txt"):
        reshard.restore(url, item="state")
    assert_same_trees(reshard.restore(url), tree(1))


def test_a_source_that_changes_is_refused(gcs_bucket: Bucket, tmp_path: Path) -> None:
    form = FORMS[0]
    url = upload(gcs_bucket, in_form(tmp_path, form), "c")
    opened = reshard.open_checkpoint(url)
    key = "c/layer_3.kernel/c.0.0"
    data = bytes(obstore.get(gcs_bucket.store(), key).bytes())
    obstore.put(gcs_bucket.store(), key, data[::-1], use_multipart=False)
    with pytest.raises(SourceChangedError, match="changed after it was first looked at"):
        opened.restore(workers=1)


def test_a_source_that_is_written_anew_is_not_published(gcs_bucket: Bucket, tmp_path: Path) -> None:
    url = upload(gcs_bucket, save_pytree(tmp_path / "c", tree(1)), "c")

    def add(_: object) -> None:
        obstore.put(gcs_bucket.store(), "c/late", b"x", use_multipart=False)

    with pytest.raises(SourceChangedError, match=r"the source .*/c' changed while it was read"):
        reshard.convert(url, tmp_path / "out", workers=1, progress=add)
    assert not (tmp_path / "out").exists()


def test_streams_read_ranges_and_name_their_state(gcs_bucket: Bucket, tmp_path: Path) -> None:
    url = upload(gcs_bucket, save_pytree(tmp_path / "c", tree(2)), "c")
    stream = reshard.open_checkpoint(url).stream("layer_1/kernel", "1:3,2:5")
    assert b"".join(stream) == tree(2)["layer_1"]["kernel"][1:3, 2:5].tobytes()


def test_files_beside_the_weights_are_carried(gcs_bucket: Bucket, tmp_path: Path) -> None:
    form = next(form for form in FORMS if form.title == "safetensors, shards")
    local = in_form(tmp_path, form)
    (local / "config.json").write_text('{"dtype": "float32"}')
    (local / "slices.json").unlink()
    url = upload(gcs_bucket, local, "hf", marker=False)
    reshard.convert(url, tmp_path / "out", workers=1, to="safetensors", carry=True)
    assert (tmp_path / "out/config.json").read_text() == '{"dtype": "float32"}'


def test_a_large_conversion_from_a_bucket_stays_in_one_process(
    gcs_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process would load the library for buckets, which the memory of a process does not count."""
    run_in_processes(monkeypatch)
    local = save_pytree(tmp_path / "saved", tree(2))
    url = upload(gcs_bucket, local, "run")
    assert reshard.plan(local, **OPTIONS).plan.processes == 2
    assert reshard.plan(url, **OPTIONS).plan.processes == 0
