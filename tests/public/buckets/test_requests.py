"""Opening a checkpoint in a bucket asks for its names once, and for each of its metadata files once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.errors import NotACheckpointError
from reshard.storage import calls
from tests.campaigns import singly
from tests.conformance.forms import FORMS, Form
from tests.emulators.buckets import Bucket
from tests.emulators.server import Options
from tests.orbax_trees import save_pytree
from tests.public.buckets.trees import in_form, tree
from tests.public.buckets.uploads import upload

ALL_FORMS = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
NAMED = [form for form in FORMS if form.format != "tensorflow"]
"""The forms whose checkpoints have a name of their own, and are not named by a prefix."""


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: reads of metadata that earlier tests made are not there."""
    monkeypatch.setattr(calls, "_READS", calls._RecentReads())


def requests_of(bucket: Bucket, call: Callable[[], Any]) -> Counter[str]:
    """The requests of a call, by kind; no part of a file is asked for twice."""
    log = bucket.emulator.log
    log.clear()
    call()
    parts = Counter((one.key, one.range) for one in log.of("get"))
    assert set(parts.values()) <= {1}, parts
    return log.counts()


def lists_and_looks(form: Form) -> Counter[str]:
    """What opening needs beside the metadata files: whether it is Orbax, or a file by itself, and all names."""
    return Counter({"list": 1, "head": 2 if form.ending else 1})


def test_a_prefix_takes_a_look_at_each_file(gcs_bucket: Bucket, tmp_path: Path) -> None:
    """Three looks at files, and no second one at the index: the prefix is recognised once."""
    (form,) = [form for form in FORMS if form.format == "tensorflow"]
    url = upload(gcs_bucket, in_form(tmp_path, form), "run/7")
    found = requests_of(gcs_bucket, lambda: reshard.open_checkpoint(url))
    assert (found["list"], found["head"]) == (2, 3)


@pytest.mark.parametrize(("form", "lent"), singly(NAMED, ["gcs_bucket", "s3_bucket"]))
def test_a_checkpoint_is_recognised_by_one_listing(
    form: Form, lent: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bucket: Bucket = request.getfixturevalue(lent)
    url = upload(bucket, in_form(tmp_path, form), f"run/7{form.ending}")
    found = requests_of(bucket, lambda: reshard.open_checkpoint(url))
    assert Counter({kind: found[kind] for kind in found if kind != "get"}) == lists_and_looks(form)


@ALL_FORMS
def test_opening_does_not_grow_with_the_tensors(
    form: Form, gcs_bucket: Bucket, tmp_path: Path
) -> None:
    found = []
    for layers in (4, 40):
        local = in_form(tmp_path / str(layers), form, layers)
        url = upload(gcs_bucket, local, f"{layers}{form.ending}")
        counts = requests_of(gcs_bucket, lambda url=url: reshard.open_checkpoint(url))
        files = [local] if local.is_file() else [p for p in local.rglob("*") if p.is_file()]
        own = ("zarr.json", ".safetensors")
        found.append(counts.total() - sum(p.name.endswith(own) for p in files))
    assert found[1] <= found[0] <= 12


@pytest.mark.parametrize("form", NAMED, ids=lambda form: form.id)
def test_each_call_looks_once(form: Form, gcs_bucket: Bucket, tmp_path: Path) -> None:
    local = in_form(tmp_path, form)
    url = upload(gcs_bucket, local, f"run/7{form.ending}")
    opening = lists_and_looks(form)
    calls: dict[str, Callable[[], Any]] = {
        "inspect": lambda: reshard.inspect(url),
        "plan": lambda: reshard.plan(url),
        "plan with a target": lambda: reshard.plan(url, tmp_path / f"planned{form.ending}"),
        "diff": lambda: reshard.diff(url, local),
        "convert": lambda: reshard.convert(url, tmp_path / f"made{form.ending}", workers=1),
    }
    for name, call in calls.items():
        gcs_bucket.emulator.log.clear()
        call()
        found = gcs_bucket.emulator.log.counts()
        # At its end a conversion lists the source again, to see that it is what it was.
        more = Counter({"list": 1, "head": int(bool(form.ending))} if name == "convert" else {})
        assert Counter({k: found[k] for k in found if k != "get"}) == opening + more, name
    gcs_bucket.emulator.log.clear()
    reshard.verify(url)
    found = gcs_bucket.emulator.log.counts()
    assert Counter({k: found[k] for k in found if k != "get"}) == opening


def test_two_sides_are_listed_once_each(gcs_bucket: Bucket, tmp_path: Path) -> None:
    local = save_pytree(tmp_path / "c", tree(2))
    urls = [upload(gcs_bucket, local, f"run/{number}") for number in (1, 2)]
    for call in reshard.verify, reshard.diff:
        gcs_bucket.emulator.log.clear()
        call(*urls)
        found = gcs_bucket.emulator.log.counts()
        assert (found["list"], found["head"]) == (2, 2)


def small_tensors(folder: Path, count: int, **options: Any) -> Path:
    """A checkpoint of many tensors of 16 bytes."""
    tensors = {f"layer_{i}": np.arange(4, dtype="float32") + i for i in range(count)}
    save_file(tensors, folder / "small.safetensors")
    reshard.convert(folder / "small.safetensors", folder / "small", workers=1, **options)
    return folder / "small"


def test_many_tensors_take_a_request_for_each_metadata_file(
    gcs_bucket: Bucket, tmp_path: Path
) -> None:
    """10,000 tensors in two files each take 20 pages; here they are a twentieth, and so are the pages."""
    local = small_tensors(tmp_path, 500, to="orbax")
    url = upload(gcs_bucket, local, "c")
    gcs_bucket.emulator.options = Options(page_keys=50)
    found = requests_of(gcs_bucket, lambda: reshard.open_checkpoint(url))
    assert (found["list"], found["head"]) == (21, 1)
    assert found.total() - 500 <= 30


def test_many_tensors_in_a_database_take_far_fewer_requests(
    gcs_bucket: Bucket, tmp_path: Path
) -> None:
    local = small_tensors(tmp_path, 600, to="orbax", ocdbt=True)
    url = upload(gcs_bucket, local, "c")
    found = requests_of(gcs_bucket, lambda: reshard.open_checkpoint(url))
    assert found.total() <= 60
    gcs_bucket.emulator.log.clear()
    reshard.convert(url, tmp_path / "out", to="safetensors", workers=1)
    assert gcs_bucket.emulator.log.count() <= 60


def test_many_tensors_in_safetensors_files_take_a_request_for_each_file(
    gcs_bucket: Bucket, tmp_path: Path
) -> None:
    local = small_tensors(tmp_path, 1000, to="safetensors", file_bytes=2000)
    url = upload(gcs_bucket, local, "c")
    files = len(list(local.glob("*.safetensors")))
    assert files == 8
    found = requests_of(gcs_bucket, lambda: reshard.open_checkpoint(url))
    assert found == {"list": 1, "head": 1, "get": files + 2}  # the index and slices.json


def test_a_later_call_sees_what_changed(gcs_bucket: Bucket, tmp_path: Path) -> None:
    """What one call has learnt is not kept for the next."""
    local = save_pytree(tmp_path / "c", tree(1))
    run = f"{gcs_bucket.url}/run"
    upload(gcs_bucket, local, "run/1")
    assert reshard.locate(run, step="latest") == f"{run}/1"
    with pytest.raises(NotACheckpointError, match="has no step 2"):
        reshard.inspect(run, step=2)
    upload(gcs_bucket, save_pytree(tmp_path / "d", tree(2)), "run/2")
    assert len(reshard.inspect(run, step="latest").tensors) == 4
    obstore.delete(gcs_bucket.store(), "run/2/commit_success.txt")
    assert reshard.locate(run, step="latest") == f"{run}/1"
    assert not reshard.is_checkpoint(f"{run}/2")


def test_a_step_is_chosen_and_opened_by_the_same_listings(
    gcs_bucket: Bucket, tmp_path: Path
) -> None:
    local = save_pytree(tmp_path / "c", tree(1))
    for step in range(5):
        upload(gcs_bucket, local, f"run/{step}")
    run = f"{gcs_bucket.url}/run"
    found = requests_of(gcs_bucket, lambda: reshard.open_checkpoint(run, step="latest"))
    assert (found["list"], found["head"]) == (1 + 5 + 1, 0)  # the run, each step, all of the last
