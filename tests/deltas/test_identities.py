"""The identities of the weights before and after a delta: recorded where they hold, and compared where one is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.cli.app import run as run_command
from reshard.errors import CorruptError, PlanError, VerificationError
from tests.delta_layout import apply_delta, bytes_of, changed, stored, write_full
from tests.emulators.buckets import Bucket

LIKE = {"a": np.arange(60_000, dtype="f4").reshape(200, 300), "b": np.arange(9, dtype="i4")}
STATES = [bytes_of(LIKE)]
for _seed in (1, 2):
    STATES.append(changed(STATES[-1], 0.01, _seed))
INDEX = "model.safetensors.index.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three full versions that record their identities."""
    for number, state in enumerate(STATES):
        write_full(tmp_path / f"v{number}", state, LIKE)
        reshard.identify(tmp_path / f"v{number}", write=True)
    return tmp_path


def publish(run: Path, *numbers: int) -> list[Path]:
    for number in numbers:
        reshard.delta(run / f"v{number - 1}", run / f"v{number}", run / f"weight_v{number:06d}")
    return [run / f"weight_v{number:06d}" for number in numbers]


def root_of(folder: Path) -> str:
    found: str = json.loads((folder / "identity.json").read_text())["root"]
    return found


def metadata_of(delta: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((delta / INDEX).read_text())["metadata"]
    return found


def with_metadata(delta: Path, **entries: Any) -> None:
    index = json.loads((delta / INDEX).read_text())
    index["metadata"] |= entries
    (delta / INDEX).write_text(json.dumps(index))


def test_the_roots_of_both_are_in_the_index(run: Path) -> None:
    report = reshard.delta(run / "v0", run / "v1", run / "weight_v000001")
    roots = (root_of(run / "v0"), root_of(run / "v1"))
    metadata = metadata_of(run / "weight_v000001")
    assert (metadata["base_identity"], metadata["target_identity"]) == roots
    assert (report.base_identity, report.target_identity) == roots
    assert apply_delta(run / "weight_v000001", STATES[0]) == STATES[1]
    (shown,) = reshard.inspect_versions(run / "weight_v000001")
    assert shown.identity == roots[1]


def test_a_tensor_that_comes_in_windows(tmp_path: Path) -> None:
    large = {"w": np.random.default_rng(3).integers(0, 256, 24 << 20, dtype=np.uint8)}
    for number, state in enumerate([bytes_of(large), changed(bytes_of(large), 1e-6, 1)]):
        write_full(tmp_path / f"v{number}", state, large)
        reshard.identify(tmp_path / f"v{number}", write=True)
    report = reshard.delta(tmp_path / "v0", tmp_path / "v1", tmp_path / "weight_v000001", max_memory="80MiB", workers=2)  # fmt: skip
    assert report.target_identity == root_of(tmp_path / "v1")


def test_the_command_shows_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(run / "weight_v000001")
    assert run_command(["delta", str(run / "v0"), str(run / "v1"), target]) == 0
    assert f"identity: {root_of(run / 'v1')}" in capsys.readouterr().out.replace("\n", " ")
    assert run_command(["inspect", target]) == 0
    assert f"  {root_of(run / 'v1')[:12]}\n" in capsys.readouterr().out


def test_rules_make_other_weights_than_those_that_were_identified(run: Path) -> None:
    reshard.delta(run / "v0", run / "v1", run / "weight_v000001", drop=["^b$"])
    assert {"base_identity", "target_identity"}.isdisjoint(metadata_of(run / "weight_v000001"))
    half = {"map": [{"from": "a", "to": "a"}, {"from": "b", "to": "b"}]}
    report = reshard.delta(run / "v1", run / "v2", run / "other" / "weight_v000002", map=half)
    assert (report.base_identity, report.target_identity) == (root_of(run / "v1"), "")


@pytest.mark.parametrize("number", [0, 1])
def test_bytes_that_changed_since_they_were_identified(run: Path, number: int) -> None:
    file = run / f"v{number}" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    known = json.loads((run / f"v{number}" / "identity.json").read_text())["tensors"]
    then = next(one["crc64nvme"] for one in known if one["name"] == "b")
    now = reshard.identify(run / f"v{number}").tensors["b"].crc64nvme
    with pytest.raises(CorruptError) as error:
        reshard.delta(run / "v0", run / "v1", run / "weight_v000001")
    assert str(error.value) == (
        f"'b' in '{run}/v{number}' has digest {now}, but its identity.json has {then}: its bytes changed since it was identified; restore it from "
        "another copy, or make the identity anew with reshard identify --write"
    )
    assert not (run / "weight_v000001").exists()


def test_deltas_of_two_identities_do_not_chain(run: Path) -> None:
    first, second = publish(run, 1, 2)
    (second / INDEX).write_text(
        json.dumps({**json.loads((second / INDEX).read_text())}).replace(
            root_of(run / "v1"), "0" * 64
        )
    )
    with pytest.raises(VerificationError) as error:
        reshard.apply(run / "v0", [first, second], run / "served")
    assert str(error.value) == (
        f"{second} was made of other weights than {first} makes: its base_identity is {'0' * 64}, but the target_identity of the version 000001 is "
        f"{root_of(run / 'v1')}; the versions are of two runs: publish a full version, and start from that"
    )


def test_a_base_that_records_its_identity_is_applied(run: Path) -> None:
    """Its identity is that of the base, not of what the deltas make of it."""
    deltas = publish(run, 1, 2)
    assert reshard.apply(run / "v0", deltas, run / "served").identity is None
    assert stored(run / "served") == STATES[2]
    assert not (run / "served" / "identity.json").exists()


@pytest.mark.parametrize("mode", ["compute", "check"])
def test_what_is_made_has_the_recorded_root(run: Path, mode: Any) -> None:
    report = reshard.apply(run / "v0", publish(run, 1, 2), run / "served", identity=mode)
    assert report.identity is not None
    assert report.identity.root == root_of(run / "v2") == root_of(run / "served")


def test_what_was_finished_before_is_checked_by_the_recorded_root(run: Path) -> None:
    deltas = publish(run, 1)
    reshard.apply(run / "v0", deltas, run / "served")
    report = reshard.apply(run / "v0", deltas, run / "served", identity="check")
    assert report.already_done
    assert report.identity == reshard.IdentityReport(root_of(run / "v1"), "checked")
    reshard.apply(run / "v0", deltas, run / "part", drop=["^b$"])
    with pytest.raises(PlanError, match="with deltas over it cannot be checked"):
        reshard.apply(run / "v0", deltas, run / "part", identity="check", drop=["^b$"])
    with_metadata(deltas[0], target_identity="0" * 64)
    reshard.apply(run / "v0", deltas, run / "other")
    with pytest.raises(VerificationError) as error:
        reshard.apply(run / "v0", deltas, run / "other", identity="check")
    assert str(error.value) == (
        f"'{run}/other' was finished before, and what it holds has the root {root_of(run / 'v1')}, but the last of the deltas over '{run}/v0' records "
        f"{'0' * 64}; make it again (overwrite)"
    )


def test_a_recorded_root_of_other_weights(run: Path) -> None:
    (delta,) = publish(run, 1)
    with_metadata(delta, target_identity="0" * 64)
    with pytest.raises(VerificationError) as error:
        reshard.apply(run / "v0", [delta], run / "served", identity="compute")
    assert str(error.value) == (
        f"what was written has the root {root_of(run / 'v1')}, but the last of the deltas over '{run}/v0' records {'0' * 64}; the output was discarded; "
        "somebody changed a delta, or its identity was of other weights: publish a full version, or make the deltas again"
    )
    assert not (run / "served").exists()
    renamed = reshard.apply(run / "v0", [delta], run / "renamed", identity="compute", rename={"^a$": "x"})  # fmt: skip
    assert renamed.identity is not None
    found = reshard.verify(run / "v0", deltas=[delta], identity=root_of(run / "v1"))
    assert found.differences == 0
    assert found.warnings == (
        f"the root is {root_of(run / 'v1')}, but the delta of the version 000001 records {'0' * 64}: somebody changed a delta, or the identity was of "
        "other weights",
    )


def test_no_identity_is_carried_through_deltas(run: Path) -> None:
    deltas = publish(run, 1)
    said = (
        f"an identity of {run}/v0 with deltas over it cannot be {{}}: deltas record at most the root of what they make, which holds for all of its "
        "tensors under their names; compute the target's (identity)"
    )
    with pytest.raises(PlanError) as error:
        reshard.apply(run / "v0", deltas, run / "served", identity="carry")
    assert str(error.value) == said.format("carried")
    with pytest.raises(PlanError) as error:
        reshard.apply(run / "v0", deltas, run / "served", identity="check", drop=["^b$"])
    assert str(error.value) == said.format("checked")


def test_weights_in_a_file_and_in_a_bucket(run: Path, s3_bucket: Bucket) -> None:
    """A file by itself has no place for an identity; one in a bucket is read from there."""
    file = run / "v0" / "model.safetensors"
    reshard.convert(run / "v1", f"{s3_bucket.url}/v1", identity="carry")
    report = reshard.delta(file, f"{s3_bucket.url}/v1", f"{s3_bucket.url}/weight_v000001")
    assert (report.base_identity, report.target_identity) == ("", root_of(run / "v1"))
    made = reshard.apply(file, [f"{s3_bucket.url}/weight_v000001"], run / "served", identity="check")  # fmt: skip
    assert made.identity is not None
    assert made.identity.root == root_of(run / "v1")
