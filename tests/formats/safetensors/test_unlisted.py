"""Files and tensors that an index leaves out: named, left out, and taken where they are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import PlanError, ResumeError
from tests.formats.safetensors.models import INDEX, A, B, C, equal, folder_of, index_of, told


def test_a_file_that_the_index_leaves_out_is_named(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, projector={"p": B, "q": C})
    index_of(source, {"a": "model.safetensors"})
    (source / "broken.safetensors").write_bytes(b"no")
    index = f"{source}/{INDEX}"
    assert told(source) == [
        f"{index} does not list 2 safetensors files beside it, left out here: broken.safetensors (not readable), "
        "projector.safetensors (2 tensors: 'p', 'q'); take them with (unlisted=\"include\")"
    ]
    equal(reshard.restore(source), {"a": A})
    (source / "broken.safetensors").unlink()
    assert told(source, unlisted="include") == []
    equal(reshard.restore(source, unlisted="include"), {"a": A, "p": B, "q": C})


def test_a_tensor_that_the_index_omits_is_named(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A, "mtp.w": B})
    index_of(source, {"a": "model.safetensors"})
    assert told(source) == [
        f"{source}/{INDEX} does not list 1 tensor of its files, left out here: 'mtp.w' in model.safetensors; take them with "
        '(unlisted="include")'
    ]
    equal(reshard.restore(source), {"a": A})
    equal(reshard.restore(source, unlisted="include"), {"a": A, "mtp.w": B})


@pytest.mark.parametrize("unlisted", ["leave", "include"])
def test_the_index_says_which_of_two_copies_counts(tmp_path: Path, unlisted: Any) -> None:
    source = folder_of(tmp_path / "src", model={"a": A, "b": B}, model_overlay_1={"a": C})
    index_of(source, {"a": "model-overlay-1.safetensors", "b": "model.safetensors"})
    assert told(source, unlisted=unlisted) == [
        f"1 tensor is in several files, and read from the one that {source}/{INDEX} names: 'a' from "
        "model-overlay-1.safetensors, not model.safetensors"
    ]
    equal(reshard.restore(source, unlisted=unlisted), {"a": C, "b": B})


def test_two_files_that_no_index_lists_do_not_share_a_tensor(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, x={"p": B}, y={"p": C})
    index_of(source, {"a": "model.safetensors"})
    with pytest.raises(
        reshard.CorruptError, match=r"tensor 'p' is in .*x\.safetensors and in .*y\.saf"
    ):
        reshard.inspect(source, unlisted="include")


def test_restore_warns_without_a_report(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, projector={"p": B})
    index_of(source, {"a": "model.safetensors"})
    with pytest.warns(reshard.CheckpointWarning, match=r"left out here: projector\.safetensors"):
        reshard.restore(source)


def test_another_choice_is_another_conversion(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, projector={"p": B})
    index_of(source, {"a": "model.safetensors"})
    out = tmp_path / "out"
    reshard.convert(source, out, to="orbax")
    assert reshard.convert(source, out, to="orbax").already_done
    with pytest.raises(reshard.TargetExistsError):
        reshard.convert(source, out, to="orbax", unlisted="include")
    choice: Any = "all"
    with pytest.raises(PlanError, match=r"unlisted is 'all'; expected one of 'leave', 'include'"):
        reshard.inspect(source, unlisted=choice)


def test_parts_take_what_the_first_one_took(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, projector={"p": B})
    index_of(source, {"a": "model.safetensors"})
    out = tmp_path / "out"
    reshard.convert_part(source, out, part="1/2", to="orbax", unlisted="include")
    with pytest.raises(ResumeError, match="unlisted was include and is unknown"):
        reshard.convert_part(source, out, part="2/2", to="orbax")
    reshard.convert_part(source, out, part="2/2", to="orbax", unlisted="include")
    reshard.commit(out)
    equal(reshard.restore(out), {"a": A, "p": B})


def test_the_record_of_a_folder_does_not_hinder_more_files(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, projector={"p": B})
    index_of(source, {"a": "model.safetensors"})
    reshard.fingerprint(source)
    assert reshard.verify(source).differences == 0
    equal(reshard.restore(source, unlisted="include"), {"a": A, "p": B})


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder_of(tmp_path / "src", model={"a": A}, projector={"p": B})
    assert run(["inspect", str(source)]) == 1
    assert "or take all files as one model (--unlisted include)" in capsys.readouterr().err.replace(
        "\n", " "
    )
    index = index_of(source, {"a": "model.safetensors"})
    assert (
        run(["convert", str(index), str(tmp_path / "out"), "--unlisted", "include", "--json"]) == 0
    )
    assert [t["target"] for t in json.loads(capsys.readouterr().out)["tensors"]] == ["a", "p"]
    for command in (
        ["plan", str(source)],
        ["inspect", str(source)],
        ["verify", str(source), str(index)],
    ):
        assert run([*command, "--json"]) in (0, 1)
        found = json.loads(capsys.readouterr().out)["warnings"]
        assert any("projector.safetensors (1 tensor: 'p')" in warning for warning in found), command
    assert run(["diff", str(source), str(index)]) == 0
    assert "projector.safetensors" in capsys.readouterr().out
