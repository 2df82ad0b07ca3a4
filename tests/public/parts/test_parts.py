"""Conversions in parts: sixteen processes that know a number make what one run makes, and other parts are refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import PlanError, ResumeError, SourceChangedError, StorageError, TargetBusyError
from reshard.storage.location import locate
from reshard.storage.parts import Part, lock_part, parse_part, parts_of
from tests.campaigns import singly
from tests.public.parts.in_parts import LAYOUT, LIMITS, convert_part, files_of, killed, names_in


@pytest.mark.parametrize(
    ("options", "count"),
    singly(
        [
            {},
            {"compression": "zstd"},
            {"cast": {"float": "bfloat16"}, "check": "readback"},
            {"to": "safetensors", "file_bytes": "200KB"},
            {"to": "safetensors", "files": "ranks"},
        ],
        [5, 1],
    ),
)
def test_parts_make_what_one_run_makes(
    options: dict[str, Any], count: int, trained: Path, tmp_path: Path
) -> None:
    reports = [
        convert_part(trained, tmp_path / "t", f"{n}/{count}", **options)
        for n in range(count, 0, -1)
    ]
    assert not (tmp_path / "t").exists()
    report = reshard.commit(tmp_path / "t")
    whole = reshard.convert(trained, tmp_path / "whole", layout=LAYOUT, **LIMITS, **options)
    assert files_of(tmp_path / "t") == files_of(tmp_path / "whole")
    assert [t.target_digest for t in report.tensors] == [t.target_digest for t in whole.tensors]
    assert sum(part.moved_bytes for part in reports) == whole.moved_bytes == report.moved_bytes
    assert names_in(tmp_path) == ["t", "whole"]
    again = reshard.convert(trained, tmp_path / "t", layout=LAYOUT, **LIMITS, **options)
    assert again.already_done


def test_one_file_of_safetensors(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    for number in (1, 2, 3):
        convert_part(trained, target, f"{number}/3")
    reshard.commit(target)
    reshard.convert(trained, tmp_path / "whole.safetensors", layout=LAYOUT, **LIMITS)
    assert target.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert names_in(tmp_path) == ["model.safetensors", "whole.safetensors"]


def test_sixteen_parts_with_two_killed_and_one_run_twice(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    for number in range(1, 17):
        if number not in (3, 11):
            convert_part(trained, target, f"{number}/16")
    convert_part(trained, target, "5/16")
    for part in ("3/16", "11/16"):
        killed(trained, target, part, after=1)
    with pytest.raises(StorageError) as caught:
        reshard.commit(target)
    assert "the parts 3/16 (" in str(caught.value)
    assert "11/16 (" in str(caught.value)
    assert "5/16" not in str(caught.value).replace("15/16", "")
    assert "nothing was published: do each with the same `reshard convert … --part i/n`" in str(
        caught.value
    )
    assert not target.exists()
    for part in ("3/16", "11/16"):
        convert_part(trained, target, part)
    reshard.commit(target)
    reshard.convert(trained, tmp_path / "whole", layout=LAYOUT, **LIMITS)
    assert files_of(target) == files_of(tmp_path / "whole")
    assert names_in(tmp_path) == ["t", "whole"]


def test_a_killed_part_resumes(trained: Path, tmp_path: Path) -> None:
    killed(trained, tmp_path / "t", "1/2", after=3)
    report = convert_part(trained, tmp_path / "t", "1/2")
    assert 0 < report.resumed_bytes < report.moved_bytes
    again = convert_part(trained, tmp_path / "t", "1/2")
    assert again.resumed_bytes == again.moved_bytes == report.moved_bytes
    assert again.read_bytes == 0


def test_a_part_of_another_conversion_is_refused(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    convert_part(trained, target, "1/2")
    begin = f"the parts of '{target}' that were begun are of another conversion: "
    end = "give every part the same source, options, --max-memory and --workers, or remove what was begun"
    for part, options, said in (
        ("2/3", {}, "there were 2 parts and are 3"),
        ("2/2", {"compression": "zstd"}, "is zstd"),
        ("2/2", {"layout": None}, "is as in the source"),
    ):
        with pytest.raises(ResumeError) as caught:
            convert_part(trained, target, part, **options)
        assert str(caught.value).startswith(begin), caught.value
        assert said in str(caught.value)
        assert end in str(caught.value)
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    with pytest.raises(ResumeError, match=f"the source was '{trained}' and is '{other}'"):
        convert_part(other, target, "2/2")


def test_a_source_that_changes_meanwhile_is_refused(trained: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "t"
    shutil.copytree(trained, source)
    with pytest.raises(
        SourceChangedError, match=f"the source '{source}' changed while it was read"
    ):
        convert_part(source, target, "1/2", progress=lambda _: (source / "new").touch())


@pytest.mark.parametrize("part", ["17/16", "0/4", "1", "a/b", "1/0", "1/65537", "-1/2", 3])
def test_a_part_that_does_not_exist(part: Any, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        convert_part(trained, tmp_path / "t", part)
    assert str(caught.value) == (
        f"part is {part!r}; expected i/n with i from 1 to n, and n at most 65,536, such as 3/16"
    )
    assert names_in(tmp_path) == []


def test_folders_above_a_target_of_parts_are_durable(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    real = os.fsync

    def sync(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115  text is compared
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    convert_part(trained, tmp_path / "new" / "deep" / "t", "1/1")
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "deep")} <= synced


def test_a_part_that_is_at_work(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    convert_part(trained, target, "1/2")
    with lock_part(locate(target), Part(2, 2)):
        with pytest.raises(
            TargetBusyError, match=f"part 2/2 of {target} is at work now; wait for it"
        ):
            reshard.commit(target)
        with pytest.raises(TargetBusyError, match="another run"):
            convert_part(trained, target, "2/2")
        with pytest.raises(TargetBusyError, match="part 2/2: another run"):
            reshard.clean(target)


def test_a_plain_conversion_leaves_parts_alone(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    convert_part(trained, target, "1/2")
    with pytest.raises(ResumeError) as caught:
        reshard.convert(trained, target, layout=LAYOUT, **LIMITS)
    assert str(caught.value).startswith(
        f"parts of a conversion to {target} were begun: do the others and commit them (reshard commit), remove them (reshard clean), or "
        "start over (restart)"
    )
    assert parts_of(locate(target)) == [Part(1, 2)]
    reshard.convert(trained, target, layout=LAYOUT, restart=True, **LIMITS)
    assert names_in(tmp_path) == ["t"]


def test_clean_removes_parts(trained: Path, tmp_path: Path) -> None:
    convert_part(trained, tmp_path / "t", "1/2")
    assert reshard.clean(tmp_path / "t", dry_run=True).files > 0
    reshard.clean(tmp_path / "t")
    assert names_in(tmp_path) == []


def test_overwriting(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    reshard.convert(trained, target)
    with pytest.raises(StorageError, match="exists already"):
        convert_part(trained, target, "1/2")
    for number in (1, 2):
        convert_part(trained, target, f"{number}/2", overwrite=True)
    reshard.commit(target)
    reshard.convert(trained, tmp_path / "whole", layout=LAYOUT, **LIMITS)
    assert files_of(target) == files_of(tmp_path / "whole")


def test_layouts_that_a_file_can_express(trained: Path, tmp_path: Path) -> None:
    layouts = reshard.LayoutMap(reshard.DeviceMesh((4,), ("model",)), ambiguous="first")
    layouts["kernel"] = ("model", None)
    for number, layout in enumerate((layouts, None)):
        options = {"layout": layout} if layout else {"layout": None, "mesh": "model=4"}
        target = tmp_path / str(number)
        convert_part(trained, target, "1/1", **options)
        reshard.commit(target)
        assert reshard.verify(trained, target).differences == 0
    tree = {"layer_00": reshard.TensorLayout((None,), reshard.DeviceMesh((2,), ("x",)))}
    with pytest.raises(
        PlanError, match="the parts of a conversion share a layout file, but the layout is a tree"
    ):
        convert_part(trained, tmp_path / "t", "1/1", layout=tree)


def test_what_is_refused_leaves_nothing(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(reshard.MemoryBudgetError):
        convert_part(trained, tmp_path / "t", "1/2", max_memory="1MiB")
    with pytest.raises(PlanError, match="matches none of the 60 names"):
        convert_part(trained, tmp_path / "t", "1/2", select=["no such name"])
    assert names_in(tmp_path) == []


def test_parse_part() -> None:
    assert parse_part("3/16") == Part(3, 16)
    assert str(Part(3, 16)) == "3/16"
    assert Part(3, 16).folder == "00003-of-00016"


def test_a_database_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="an OCDBT database is written by one process"):
        convert_part(trained, tmp_path / "t", "1/2", ocdbt=True)
