"""Full versions that record which version they are: anchors, from which a chain of deltas goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.errors import CorruptError, PlanError, TargetExistsError
from tests.delta_layout import bytes_of, changed, stored, write_delta, write_full
from tests.emulators.buckets import Bucket
from tests.oracles.oracle import Oracle

LIKE = {"a": np.arange(600, dtype="f4"), "b": np.arange(9, dtype="i4")}
STATES = [bytes_of(LIKE)]
for _seed in (1, 2):
    STATES.append(changed(STATES[-1], 0.01, _seed))
INDEX = "model.safetensors.index.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A full version and the deltas 1 and 2."""
    write_full(tmp_path / "v0", STATES[0], LIKE)
    for number in (1, 2):
        write_delta(tmp_path, number, STATES[number - 1], STATES[number])
    return tmp_path


def chain(run: Path) -> list[Path]:
    return sorted(run.glob("weight_v00000[12]"))


def index_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return found


def test_the_name_of_a_version_is_in_the_index_of_its_one_file(run: Path) -> None:
    report = reshard.convert(run / "v0", run / "weight_v000010")
    assert sorted(one.name for one in (run / "weight_v000010").iterdir()) == [
        "model.safetensors", INDEX, "slices.json",
    ]  # fmt: skip
    assert index_of(run / "weight_v000010") == {
        "metadata": {"version": "000010", "total_size": 2436},
        "weight_map": {"a": "model.safetensors", "b": "model.safetensors"},
    }
    assert not report.already_done
    assert reshard.verify(run / "weight_v000010", run / "v0").differences == 0


def test_the_next_delta_stands_on_what_an_anchor_records(run: Path) -> None:
    anchor = reshard.apply(run / "v0", chain(run), run / "weight_v000002-full", file_bytes=100)
    assert index_of(Path(anchor.target))["metadata"] == {"version": "000002", "total_size": 2436}
    new = write_full(run / "new", changed(STATES[2], 0.1, 9), LIKE)
    assert reshard.delta(anchor.target, new, run / "weight_v000007").base_version == "000002"


def test_apply_names_the_version_that_it_makes(run: Path) -> None:
    reshard.apply(run / "v0", chain(run), run / "several", file_bytes=100)
    assert index_of(run / "several")["metadata"]["version"] == "000002"
    reshard.apply(run / "v0", chain(run), run / "one")
    assert index_of(run / "one")["metadata"]["version"] == "000002"
    rules: dict[str, Any] = {"rename": {"^a$": "x"}, "file_bytes": 100}
    reshard.apply(run / "v0", chain(run), run / "renamed", **rules)
    assert "version" not in index_of(run / "renamed")["metadata"]
    reshard.apply(run / "v0", chain(run), run / "weight_v000009", **rules)
    assert index_of(run / "weight_v000009")["metadata"]["version"] == "000009"


@pytest.mark.parametrize("files", ["ranks", "dcp"])
def test_slices_have_no_index(run: Path, files: Any) -> None:
    reshard.convert(run / "v0", run / "weight_v000010", files=files, mesh="m=2")
    assert not (run / "weight_v000010" / INDEX).exists()


def test_a_name_of_another_version_than_the_deltas_make_is_refused(run: Path) -> None:
    target = run / "weight_v000003"
    with pytest.raises(PlanError) as error:
        reshard.apply(run / "v0", chain(run), target)
    assert str(error.value) == (
        f"the target '{target}' has the name of the version 000003, but the deltas make the version 000002, on which receivers would put the wrong "
        "deltas; name it weight_v000002, or by no version"
    )
    assert not target.exists()
    (run / "weight_v000002").rename(run / "second")
    deltas = [run / "weight_v000001", run / "second"]
    reshard.apply(run / "v0", deltas, run / "weight_v000002")
    assert index_of(run / "weight_v000002")["metadata"]["version"] == "000002"
    assert stored(run / "weight_v000002") == STATES[2]
    assert reshard.apply(run / "v0", deltas, run / "weight_v000002").already_done


def test_an_anchor_under_another_name_is_another_target(run: Path) -> None:
    """What its index records would be wrong."""
    reshard.convert(run / "v0", run / "weight_v000010")
    assert reshard.convert(run / "v0", run / "weight_v000010").already_done
    (run / "weight_v000010").rename(run / "weight_v000011")
    with pytest.raises(TargetExistsError):
        reshard.convert(run / "v0", run / "weight_v000011")
    with pytest.raises(CorruptError) as error:
        reshard.delta(run / "weight_v000011", run / "v0", run / "weight_v000012")
    assert str(error.value) == (
        f"{run}/weight_v000011/{INDEX} is of the version 000010, but the folder is weight_v000011; rename the folder back, or make the version "
        "again"
    )
    report = reshard.convert(run / "v0", run / "weight_v000011", overwrite=True)
    assert not report.already_done
    assert index_of(run / "weight_v000011")["metadata"]["version"] == "000011"


def test_a_run_that_was_interrupted_resumes_to_an_anchor(run: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(_: str) -> None:
        raise StoppedError

    target = run / "weight_v000002-full"
    deltas, rules = chain(run), {"file_bytes": 100}
    with pytest.raises(StoppedError):
        reshard.apply(run / "v0", deltas, target, before_publish=stop, **rules)
    assert reshard.apply(run / "v0", deltas, target, **rules).resumed_bytes
    assert index_of(target)["metadata"]["version"] == "000002"


def test_a_version_without_tensors_has_no_index(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    save_file({}, tmp_path / "none" / "model.safetensors")
    reshard.convert(tmp_path / "none", tmp_path / "weight_v000001")
    assert not (tmp_path / "weight_v000001" / INDEX).exists()
    assert not reshard.inspect(tmp_path / "weight_v000001").tensors


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("files", [{}, {"file_bytes": 20_000}], ids=["one", "several"])
def test_transformers_loads_an_anchor(files: dict[str, Any], torch: Oracle, tmp_path: Path) -> None:
    source, target = tmp_path / "model", tmp_path / "weight_v000003"
    logits = torch.ask("save_model", kind="llama", folders={str(source): "50KB"})
    reshard.convert(source, target, carry=True, **files)
    assert index_of(target)["metadata"]["version"] == "000003"
    found = torch.ask("load_model", folder=str(target))
    assert found == {"logits": logits, "missing_keys": [], "unexpected_keys": []}


def test_an_anchor_in_a_bucket(run: Path, s3_bucket: Bucket) -> None:
    target = f"{s3_bucket.url}/weight_v000002"
    planned = reshard.plan(run / "v0", target).requests
    reshard.apply(run / "v0", chain(run), target)
    data = s3_bucket.store().get(f"weight_v000002/{INDEX}").bytes()
    assert json.loads(bytes(data))["metadata"]["version"] == "000002"
    assert planned is not None
    assert reshard.apply(run / "v0", chain(run), target).already_done
