"""The commit of parts: it publishes only what is whole, durable and of one source, and goes on where it was killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import MissingError, ResumeError, StorageError
from tests.public.parts.in_parts import LAYOUT, LIMITS, convert_part, files_of, names_in


@pytest.mark.parametrize("after", [1, 9, 25])
def test_a_killed_commit_goes_on(after: int, trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    for number in (1, 2, 3):
        convert_part(trained, target, f"{number}/3")
    code = f"""
import os, signal, sys, reshard
from reshard.conversion.parts import commit as parts_module
from reshard.storage.local import staging
parts_module.RESULTS_AT_ONCE, left, rename = 1, [{after}], os.rename
def killing(*words, **options):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*words, **options)
os.rename = killing
reshard.commit(sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    reshard.commit(target)
    reshard.convert(trained, tmp_path / "whole", layout=LAYOUT, **LIMITS)
    assert files_of(target) == files_of(tmp_path / "whole")
    assert names_in(tmp_path) == ["t", "whole"]


def test_a_commit_that_was_killed_after_it_published(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t"
    convert_part(trained, target, "1/1")
    from reshard.conversion import convert

    def killed(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "removed_once_published", killed)
    with pytest.raises(KeyboardInterrupt):
        reshard.commit(target)
    monkeypatch.undo()
    assert target.exists()
    assert reshard.commit(target).already_done
    assert names_in(tmp_path) == ["t"]


def test_a_source_that_changed_is_refused(trained: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "t"
    shutil.copytree(trained, source)
    for number in (1, 2):
        convert_part(source, target, f"{number}/2")
    (source / "more").write_text("new")
    with pytest.raises(ResumeError, match="the source changed since"):
        reshard.commit(target)
    assert not target.exists()


def test_commit_without_parts(trained: Path, tmp_path: Path) -> None:
    for what in (None, trained):
        if what is not None:
            shutil.copytree(what, tmp_path / "t")  # made by nobody's conversion
        with pytest.raises(
            MissingError, match=r"no part of a conversion to .* was begun; do each with"
        ):
            reshard.commit(tmp_path / "t")


def test_a_second_commit_changes_nothing(trained: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    convert_part(trained, tmp_path / "t", "1/1")
    first = reshard.commit(tmp_path / "t", progress=seen.append)
    again = reshard.commit(tmp_path / "t")
    assert not first.already_done
    assert first.resumed_bytes == 0
    assert {progress.resumed_bytes for progress in seen} == {0}
    assert again.already_done
    assert {t.target: t.target_digest for t in again.tensors} == {
        t.target: t.target_digest for t in first.tensors
    }


def test_a_damaged_record(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    convert_part(trained, target, "1/2")
    record = tmp_path / ".t.reshard-partial/parts/request"
    content = json.loads(record.read_bytes())
    for damaged in (b"", b"{}", b"\xff", json.dumps({**content, "version": 99}).encode()):
        record.write_bytes(damaged)
        with pytest.raises(
            ResumeError, match=f"the record of the parts of '{target}' is damaged, or of another"
        ):
            reshard.commit(target)
        with pytest.raises(ResumeError, match="is damaged, or of another version of reshard"):
            convert_part(trained, target, "2/2")


def test_a_file_that_is_gone_names_its_part(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    for number in (1, 2):
        convert_part(trained, target, f"{number}/2")
    root = tmp_path / ".t.reshard-partial/parts/00002-of-00002"
    next(path for path in sorted(root.rglob("*")) if path.is_file()).unlink()
    with pytest.raises(
        StorageError,
        match=r"a file of part 2/2 is not there any more: .* do that part again, and commit",
    ):
        reshard.commit(target)
    convert_part(trained, target, "2/2")
    reshard.commit(target)
    assert reshard.verify(trained, target).differences == 0
    assert names_in(tmp_path) == ["t"]


def journal_of(number: int, folder: Path) -> Path:
    """The journal of part ``number`` of 2 of the target ``t``."""
    return folder / f".t.reshard-partial/parts/{number:05}-of-00002/journal"


def test_a_part_that_does_not_say_that_it_is_durable_is_not_committed(
    trained: Path, tmp_path: Path
) -> None:
    for number in (1, 2):
        convert_part(trained, tmp_path / "t", f"{number}/2")
    journal = journal_of(2, tmp_path)
    lines = journal.read_bytes().splitlines(keepends=True)
    assert b"sealed" in lines[-1]
    journal.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(
        StorageError,
        match=r"the parts 2/2 \((\d+) of \1 tasks done\) of .* are missing; nothing was published",
    ):
        reshard.commit(tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_a_part_that_records_units_of_another_is_not_committed(
    trained: Path, tmp_path: Path
) -> None:
    for number in (1, 2):
        convert_part(trained, tmp_path / "t", f"{number}/2")
    of_other = journal_of(1, tmp_path).read_bytes().splitlines(keepends=True)[1]
    header, *rest = journal_of(2, tmp_path).read_bytes().splitlines(keepends=True)
    journal_of(2, tmp_path).write_bytes(b"".join([header, of_other, *rest]))
    with pytest.raises(
        StorageError, match=r"part 2/2 of .* records a unit that is not its own; remove the parts"
    ):
        reshard.commit(tmp_path / "t")
    assert not (tmp_path / "t").exists()
