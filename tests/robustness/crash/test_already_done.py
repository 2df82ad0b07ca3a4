"""A finished target is left alone, reported from its record, and refused to other conversions."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.cli.app import run as run_command
from reshard.conversion.report import TensorReport
from reshard.errors import (
    CorruptError,
    TargetExistsError,
)
from tests.checkpoint_files import files_without_times
from tests.robustness.crash.cases import CASES
from tests.robustness.crash.interrupted import (
    CASE,
    chunk_files,
)
from tests.source_reads import Reads

pytestmark = pytest.mark.usefixtures("small_batches")


def test_a_finished_target_is_left_alone(source, target, expected, capsys):
    reshard.convert(source, target, **CASE.options)
    before = {p: p.stat().st_mtime_ns for p in [target, *target.rglob("*")]}
    report = reshard.convert(source, target, **{**CASE.options, "workers": 1})
    assert report.already_done
    assert {p: p.stat().st_mtime_ns for p in [target, *target.rglob("*")]} == before
    again = reshard.convert(source, target, overwrite=True, **CASE.options)
    assert not again.already_done
    assert files_without_times(target) == expected
    assert run_command(["convert", str(source), str(target.parent / "u")]) == 0
    assert run_command(["convert", str(source), str(target.parent / "u"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["already_done"] is True
    assert told["nbytes"] == sum(t.nbytes for t in report.tensors)
    assert {t["target"]: t["target_digest"] for t in told["tensors"]} == {
        t.target: t.target_digest for t in report.tensors
    }


@pytest.mark.parametrize("name", ["weave", "cast", "copy", "ocdbt"])
def test_a_finished_target_is_reported_from_its_record(name, sources, target):
    case = CASES[name]
    made = reshard.convert(sources[case.source], target, **case.options)
    again = reshard.convert(sources[case.source], target, **case.options)
    assert again.already_done
    assert list(map(kept, again.tensors)) == list(map(kept, made.tensors))
    assert any(t.target_digest for t in again.tensors) == (name != "copy")
    assert {
        (t.source, t.source_dtype, t.strategy, t.source_digest, t.proof, t.cast)
        for t in again.tensors
    } == {(None,) * 6}


def test_chunks_copied_encoded_are_reported_with_the_digests_of_their_source(
    sources, target, tmp_path
):
    made = reshard.convert(sources["raw"], target, compression="zstd")
    recorded = {t.target: t.target_digest for t in made.tensors}
    copy = reshard.convert(target, tmp_path / "copy", compression="keep")
    assert {t.strategy for t in copy.tensors} == {"copy"}
    again = reshard.convert(target, tmp_path / "copy", compression="keep")
    assert again.already_done
    assert {t.target: t.target_digest for t in again.tensors} == recorded


def test_a_finished_target_of_several_items_reports_all_tensors(target, tmp_path):
    with ocp.CheckpointManager(tmp_path / "run", item_names=("state", "ema")) as manager:
        state = {"w": np.arange(8, dtype=np.int32), "b": np.ones(3, np.float32)}
        trees = {
            n: ocp.args.PyTreeSave(t) for n, t in (("state", state), ("ema", {"w": state["w"]}))
        }
        manager.save(1, args=ocp.args.Composite(**trees))
        manager.wait_until_finished()
    made = reshard.convert(tmp_path / "run" / "1", target)
    again = reshard.convert(tmp_path / "run" / "1", target)
    assert {t.target for t in again.tensors} == {"state/w", "state/b", "ema/w"}
    assert list(map(kept, again.tensors)) == list(map(kept, made.tensors))
    assert all(t.target_digest for t in again.tensors)


def test_no_tensor_is_read_to_report_a_finished_target(source, target, monkeypatch):
    reshard.convert(source, target, **CASE.options)
    reads = Reads(monkeypatch)
    assert all(t.target_digest for t in reshard.convert(source, target, **CASE.options).tensors)
    monkeypatch.undo()
    assert str(target / "slices.json") in reads.intervals
    assert not {str(file) for file in chunk_files(target)} & reads.intervals.keys()


def kept(tensor: TensorReport) -> tuple:
    """What a finished target records of a tensor."""
    return tensor.target, tensor.shape, tensor.target_dtype, tensor.nbytes, tensor.target_digest


def test_targets_of_other_conversions_are_refused(source, target, tmp_path):
    reshard.convert(source, target, **CASE.options)
    own = Path(shutil.copytree(source, tmp_path / "own"))
    for other in ({"compression": "zstd"}, {"layout": None}, {"drop": ["small"]}, {"style": "v1"}):
        with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
            reshard.convert(source, target, **{**CASE.options, **other})
    with pytest.raises(TargetExistsError):
        reshard.convert(own, target, **CASE.options)
    (target / "slices.json").unlink()
    with pytest.raises(TargetExistsError):
        reshard.convert(source, target, **CASE.options)


@pytest.mark.parametrize(
    ("compression", "keeps"), [("none", 0), ("none", 100), ("keep", 100), ("zstd", None)]
)
def test_a_finished_target_that_lost_bytes_is_reported_as_damaged(
    compression, keeps, source, target
):
    """A chunk is gone (None), or has another size than a raw one must have."""
    options = {**CASE.options, "compression": compression}
    reshard.convert(source, target, **options)
    chunk = chunk_files(target)[0]
    chunk.unlink() if keeps is None else os.truncate(chunk, keeps)
    said = rf"{target}' is the finished result of this .* was damaged since: tensor .*, chunk"
    with pytest.raises(CorruptError, match=said):
        reshard.convert(source, target, **options)
    assert not reshard.convert(source, target, overwrite=True, **options).already_done
