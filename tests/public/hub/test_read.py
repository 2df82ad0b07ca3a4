"""Checkpoints on the hub are read like local ones, each call at one commit, and no byte more than is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import reshard
from reshard.errors import MissingError, MissingPackageError, PlanError, StorageError
from tests.checkpoint_files import files_without_times
from tests.conformance.forms import FORMS, Form
from tests.emulators.buckets import Bucket
from tests.emulators.hub import Fault, Hub
from tests.emulators.server import Options
from tests.equal import assert_same_trees
from tests.formats.safetensors.build import sharded
from tests.orbax_trees import save_manager_items, save_pytree, small_tree
from tests.public.buckets.trees import in_form
from tests.public.hub.uploads import commit


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_as_from_a_disk(form: Form, hub: Hub, tmp_path: Path) -> None:
    local = in_form(tmp_path, form)
    url = commit(hub, local, below=f"run/7{form.ending}")
    found, expected = reshard.inspect(url), reshard.inspect(local)
    sha = hub.repo("org/model").refs["main"]
    assert (found.uri, found.format) == (
        f"hf://org/model@{sha}/run/7{form.ending}",
        expected.format,
    )
    assert list(map(repr, found.tensors.values())) == list(map(repr, expected.tensors.values()))
    assert_same_trees(reshard.restore(url), reshard.restore(local))
    verified = reshard.verify(url, local)
    assert (verified.differences, bool(verified.damage)) == (0, False)


def test_what_a_conversion_writes_is_the_same_as_from_a_disk(hub: Hub, tmp_path: Path) -> None:
    local = sharded(tmp_path / "hf")
    url = commit(hub, local)
    for source, target in (str(local), "from_disk"), (url, "from_hub"):
        reshard.convert(source, tmp_path / target, to="orbax", workers=2)
    records = ("slices.json", "layout.yaml")  # which name the source
    found, expected = (
        files_without_times(tmp_path / target) for target in ("from_hub", "from_disk")
    )
    assert found.keys() == expected.keys()
    assert [
        name for name in found if found[name] != expected[name] and not name.endswith(records)
    ] == []
    assert reshard.verify(tmp_path / "from_hub", url).differences == 0
    again = reshard.convert(url, tmp_path / "from_hub", to="orbax", workers=2)
    assert again.already_done


def test_only_the_bytes_of_one_tensor_are_read(hub: Hub, tmp_path: Path) -> None:
    large, small = np.zeros((1 << 20, 8), np.float32), np.arange(1 << 14, dtype=np.float32)
    hub.repo("org/model").commit({"model.safetensors": save({"a": large, "b": small, "c": large})})
    report = reshard.convert("hf://org/model", tmp_path / "out", select=["b"], to="orbax")
    read = sum(one.sent_bytes for one in hub.asked("cdn"))
    assert read < 1 << 20  # of 64 MiB
    assert report.requests is not None
    assert report.requests.actual.received_bytes == read
    assert reshard.restore(tmp_path / "out")["b"].tobytes() == small.tobytes()


def test_the_whole_of_a_large_file_is_looked_up_at_the_hub_once(hub: Hub, tmp_path: Path) -> None:
    arrays = {f"a{number}": np.full((1 << 20,), number, np.float32) for number in range(16)}
    hub.repo("org/model").commit({"model.safetensors": save(arrays)})
    report = reshard.convert("hf://org/model", tmp_path / "out", to="orbax", workers=1)
    assert reshard.verify(tmp_path / "out", "hf://org/model").differences == 0
    assert report.requests is not None
    assert report.requests.planned.total >= report.requests.actual.total
    assert len(hub.asked("hub", "/resolve/")) < len(hub.asked("cdn")) / 4


def test_steps(hub: Hub, tmp_path: Path) -> None:
    local = save_pytree(tmp_path / "saved", small_tree())
    for step in (5, 10):
        commit(hub, local, below=f"run/{step}")
    url = "hf://org/model/run"
    sha = hub.repo("org/model").refs["main"]
    assert reshard.steps(url) == {5: "5", 10: "10"}
    assert reshard.locate(url, step="latest") == f"hf://org/model@{sha}/run/10"
    assert reshard.is_checkpoint(f"{url}/10")
    reshard.convert(url, tmp_path / "out", step="latest")
    assert reshard.verify(tmp_path / "out", f"{url}/5").differences == 0


def test_items_of_a_step(hub: Hub, tmp_path: Path) -> None:
    url = commit(hub, save_manager_items(tmp_path / "run", small_tree()).parent)
    reshard.convert(url, tmp_path / "out", step=12, item="state")
    assert reshard.verify(tmp_path / "out", f"{url}/12/state").differences == 0


def test_the_config_of_a_model_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    files = {"config.json": b'{"model_type": "odd"}', "tokenizer.json": b"{}", "README.md": b"x"}
    hub.repo("org/config").commit(files)
    source = save_pytree(tmp_path / "saved", {"a": np.ones((4, 4), np.float32)})
    reshard.convert(source, tmp_path / "out", to="safetensors", config="hf://org/config")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {"model_type": "odd"}
    assert (tmp_path / "out/tokenizer.json").read_bytes() == b"{}"
    assert not (tmp_path / "out/README.md").exists()
    with pytest.raises(PlanError, match=r"config is 'hf://org/config@\w+/no', which is no folder"):
        reshard.convert(source, tmp_path / "o", to="safetensors", config="hf://org/config/no")


def test_files_beside_the_weights_are_carried(hub: Hub, tmp_path: Path) -> None:
    weights = save({"a": np.ones((4, 4), np.float32)})
    hub.repo("org/model").commit({"model.safetensors": weights, "config.json": b"{}", "t/x": b"1"})
    reshard.convert("hf://org/model", tmp_path / "out", carry=True)
    assert (tmp_path / "out/config.json").read_bytes() == b"{}"
    assert (tmp_path / "out/t/x").read_bytes() == b"1"


@pytest.mark.parametrize("part", ["/tree/", "/resolve/"])
def test_a_call_reads_one_commit_while_the_branch_moves(
    part: str, hub: Hub, tmp_path: Path
) -> None:
    before, after = (save({"a": np.full((300, 8), number, np.float32)}) for number in (1, 2))
    repo = hub.repo("org/model")
    first = repo.commit({"model.safetensors": before})
    hub.faults.append(Fault(part, call=lambda: repo.commit({"model.safetensors": after})))
    reshard.convert("hf://org/model", tmp_path / "out", to="orbax")
    assert len(repo.commits) == 2
    assert not reshard.convert(
        f"hf://org/model@{first}", tmp_path / "out", to="orbax"
    ).written_bytes
    assert set(reshard.restore(tmp_path / "out")["a"].flat) == {1}
    assert set(reshard.restore("hf://org/model")["a"].flat) == {2}


def test_the_cache_is_read_without_requests(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, snapshot_download

    url = commit(hub, sharded(tmp_path / "hf"))
    snapshot_download("org/model")
    hub.log.clear()
    reshard.convert(url, tmp_path / "a", to="orbax")
    assert not [one for one in hub.log if "/api/" not in one.path]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.log.clear()
    reshard.convert(url, tmp_path / "b", to="orbax")
    assert not hub.log
    assert reshard.verify(tmp_path / "a", tmp_path / "b").differences == 0


def test_a_bucket_of_the_hub_is_one_of_s3(
    s3_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "buckets.toml"
    settings.write_text(f'["{s3_bucket.url}"]\nendpoint = "{s3_bucket.emulator.url}/org"\n')
    monkeypatch.setenv("RESHARD_BUCKETS", str(settings))
    s3_bucket.emulator.options = Options(begin="/org")
    source = save_pytree(tmp_path / "saved", small_tree())
    reshard.convert(source, f"hf://buckets/org/{s3_bucket.name}/run/7")
    assert reshard.verify(f"hf://buckets/org/{s3_bucket.name}/run/7", source).differences == 0
    report = reshard.convert(f"hf://buckets/org/{s3_bucket.name}/run", tmp_path / "out", step=7)
    assert report.requests is not None
    assert reshard.verify(f"{s3_bucket.url}/run/7", tmp_path / "out").differences == 0
    with pytest.raises(StorageError, match="no endpoint of the namespace 'other' is set for s3://"):
        reshard.inspect(f"hf://buckets/other/{s3_bucket.name}/run")


def test_what_is_not_there(hub: Hub, tmp_path: Path) -> None:
    url = commit(hub, sharded(tmp_path / "hf"), below="weights")
    with pytest.raises(MissingError, match=r"hf://org/model@\w+/weight does not exist: expected"):
        reshard.convert("hf://org/model/weight", tmp_path / "out")
    hub.repo("org/model").commit({"weights/model-00001-of-00002.safetensors": None})
    with pytest.raises(StorageError):
        reshard.convert(url, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("huggingface_hub")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError) as caught:
        reshard.inspect("hf://org/model")
    assert str(caught.value) == (
        "hf:// needs the package huggingface_hub; run pip install '.[hf]' in a checkout of reshard"
    )
