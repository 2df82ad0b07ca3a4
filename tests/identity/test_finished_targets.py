"""``convert(identity=)`` of a target that was finished before: it is read and hashed, as it was asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.cli.app import run


def root_in(folder: Path) -> str:
    root: str = json.loads((folder / "identity.json").read_text())["root"]
    return root


@pytest.fixture
def target(checkpoint: Path, tmp_path: Path) -> Path:
    """A finished target in one file, without an identity."""
    made = tmp_path / "t.safetensors"
    reshard.convert(checkpoint, made, identity="none")
    return made


@pytest.mark.parametrize(("how", "word"), [("compute", "computed"), ("check", "checked")])
def test_its_root_is_computed(how: Any, word: str, checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert(checkpoint, tmp_path / "t", identity="none", ocdbt=True)
    stages: set[str] = set()
    for _ in range(2):
        report = reshard.convert(
            checkpoint,
            tmp_path / "t",
            identity=how,
            ocdbt=True,
            progress=lambda p: stages.add(p.stage),
        )
        assert report.already_done
        assert report.identity == reshard.IdentityReport(root_in(checkpoint), word)
        assert report.warnings[0].startswith(f"{str(tmp_path / 't')!r} was finished before, wit")
    assert stages == {"identifying"}
    assert not (tmp_path / "t" / "identity.json").exists()
    with pytest.raises(reshard.MemoryBudgetError):
        reshard.convert(checkpoint, tmp_path / "t", identity=how, ocdbt=True, max_memory="1MiB")


def test_carry_and_none_read_nothing(checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert(checkpoint, tmp_path / "t")
    stages: set[str] = set()
    hows: list[Any] = [None, "carry", "none"]
    found = [
        reshard.convert(
            checkpoint, tmp_path / "t", identity=how, progress=lambda p: stages.add(p.stage)
        ).identity
        for how in hows
    ]
    recorded = reshard.IdentityReport(root_in(checkpoint), "recorded")
    assert found == [recorded, recorded, None]
    assert not stages


def test_a_file_has_a_root_and_no_warning(checkpoint: Path, target: Path) -> None:
    report = reshard.convert(checkpoint, target, identity="check")
    assert report.identity is not None and report.identity.how == "checked"
    assert report.warnings == ()
    assert reshard.convert(checkpoint, target, identity="carry").warnings == ()


def test_another_root_than_it_records_is_a_difference(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    reshard.save(other, {"w": np.zeros(4, "float32")})
    reshard.identify(other, write=True)
    reshard.convert(checkpoint, tmp_path / "t")
    shutil.copy(other / "identity.json", tmp_path / "t")
    words = (
        f"'{tmp_path / 't'}' was finished before, and what it holds has the root {root_in(checkpoint)}, but its identity.json records "
        f"{root_in(other)}: its weights or that file changed since; make it again (overwrite)"
    )
    for how in ("compute", "check"):
        with pytest.raises(reshard.VerificationError) as caught:
            reshard.convert(checkpoint, tmp_path / "t", identity=how)
        assert str(caught.value) == words
    command = ["convert", str(checkpoint), str(tmp_path / "t"), "--identity", "compute"]
    assert run(command) == 3
    assert root_in(other) in " ".join(capsys.readouterr().err.split())


def test_check_needs_an_identity_of_the_source(checkpoint: Path, target: Path) -> None:
    (checkpoint / "identity.json").unlink()
    with pytest.raises(reshard.PlanError, match="records no identity that could be checked"):
        reshard.convert(checkpoint, target, identity="check")
    report = reshard.convert(checkpoint, target, identity="compute")
    assert report.identity is not None and report.identity.how == "computed"


def test_other_bits_than_the_source_are_a_difference(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "slices.json").unlink()  # its digests would contradict the other identity
    reshard.convert(checkpoint, tmp_path / "t", identity="none")
    tree = reshard.restore(checkpoint)
    reshard.save(tmp_path / "other", {**tree, "embed": tree["embed"] + 1})
    reshard.identify(tmp_path / "other", out=checkpoint)
    words = r"t' was finished before, and the identity of the source '.*ckpt' has no tensor with the dtype, shape and bits of its 'embed'"
    with pytest.raises(reshard.VerificationError, match=words):
        reshard.convert(checkpoint, tmp_path / "t", identity="check")
    assert reshard.convert(checkpoint, tmp_path / "t", identity="compute").already_done


def test_changed_bytes_of_the_target_are_said(checkpoint: Path, target: Path) -> None:
    data = bytearray(target.read_bytes())
    data[-1] ^= 1
    target.write_bytes(data)
    with pytest.raises(reshard.CorruptError, match=r"has digest .* its bytes changed since"):
        reshard.convert(checkpoint, target, identity="compute")


@pytest.mark.parametrize(
    "rules",
    [
        {"rename": [("^layers", "blocks")]},
        {"rename": [("^embed$", "layers/w"), ("^layers/w$", "embed")]},
        {"rename": [("^embed$", "layers/w")], "drop": ["^layers/w$"]},
        {"map": {"map": [{"from": "embed", "to": "layers/w"}, {"from": "layers/w", "to": "embed"}, {"from": "layers/n", "to": "n"}]}},
    ],
    ids=["rename", "swap", "in place of another", "map"],
)  # fmt: skip
def test_rules_give_tensors_other_names(rules: Any, checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert(checkpoint, tmp_path / "t", **rules)
    report = reshard.convert(checkpoint, tmp_path / "t", identity="check", **rules)
    assert report.already_done
    assert report.identity == reshard.IdentityReport(root_in(tmp_path / "t"), "checked")


@pytest.mark.parametrize(
    "rules",
    [{"cast": {"float": "bfloat16"}}, {"map": {"map": [{"from": "embed", "to": "embed", "cast": "bfloat16"}, {"from": "layers/w", "to": "w"}, {"from": "layers/n", "to": "n"}]}}],
    ids=["cast", "map"],
)  # fmt: skip
def test_a_cast_is_a_difference_to_the_source(rules: Any, checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert(checkpoint, tmp_path / "t", identity="compute", **rules)
    words = r"has no tensor with the dtype, shape and bits of its 'embed'; make it again \(overwrite\), or compute its root alone"
    with pytest.raises(reshard.VerificationError, match=words):
        reshard.convert(checkpoint, tmp_path / "t", identity="check", **rules)


def test_one_of_several_targets_is_named(checkpoint: Path, tmp_path: Path) -> None:
    cast = {"float": "bfloat16"}
    made = [
        reshard.Target(tmp_path / name, cast=cast, identity="compute") for name in ("one", "two")
    ]
    reshard.convert_all(checkpoint, made)
    asked = [made[0], reshard.Target(tmp_path / "two", cast=cast, identity="check")]
    with pytest.raises(reshard.VerificationError, match="two' was finished before") as caught:
        reshard.convert_all(checkpoint, asked)
    assert caught.value.target == str(tmp_path / "two")


def test_a_commit_reads_nothing(checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert_part(checkpoint, tmp_path / "t", part="1/1", identity="check")
    reshard.commit(tmp_path / "t")
    report = reshard.commit(tmp_path / "t")
    assert report.identity == reshard.IdentityReport(root_in(checkpoint), "recorded")
