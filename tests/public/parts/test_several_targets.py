"""Parts with several targets: read once, recorded beside each target, and published by one commit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.conversion.parts import commit as committing
from reshard.engine import task_stream
from reshard.errors import MissingError, PlanError, ResumeError, StorageError
from tests.public.parts.in_parts import LAYOUT, LIMITS, files_of, names_in


def targets(folder: Path | str, **options: Any) -> list[reshard.Target]:
    return [
        reshard.Target(f"{folder}/a", layout=LAYOUT, **options),
        reshard.Target(f"{folder}/b", cast={"float": "bfloat16"}, **options),
    ]


def begin(source: Path, folder: Path, parts: int = 3, **options: Any) -> Any:
    return reshard.begin_parts(source, targets(folder, **options), parts, **LIMITS)


def test_they_are_those_of_one_run(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    begun = begin(trained, tmp_path)
    assert (begun.parts, begun.already_done, len(begun.targets)) == (3, False, 2)
    read = 0
    for number in (3, 1, 2):
        report = reshard.join_part(tmp_path / ("a" if number == 2 else "b"), f"{number}/3")
        read += report.read_bytes
    made = reshard.commit_all(tmp_path / "b")
    whole = reshard.convert_all(trained, targets(tmp_path / "whole"), **LIMITS)
    assert read == whole.read_bytes  # of one reading
    assert [Path(each.target).name for each in made.reports] == ["a", "b"]
    for name in ("a", "b"):
        assert files_of(tmp_path / name) == files_of(tmp_path / "whole" / name)
    assert names_in(tmp_path) == ["a", "b", "whole"]
    assert begin(trained, tmp_path).already_done


def test_a_file_that_is_written_in_order_is_done_by_one_part(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()

    def several(folder: Path) -> list[reshard.Target]:
        return [*targets(folder)[:1], reshard.Target(folder / "b", to="safetensors")]

    reshard.begin_parts(trained, several(tmp_path), 2, **LIMITS)
    for number in (1, 2):
        reshard.join_part(tmp_path / "a", f"{number}/2")
    reshard.commit(tmp_path / "b")
    reshard.convert_all(trained, several(tmp_path / "whole"), **LIMITS)
    for name in ("a", "b"):
        assert files_of(tmp_path / name) == files_of(tmp_path / "whole" / name)


def test_nothing_appears_while_a_part_is_missing(trained: Path, tmp_path: Path) -> None:
    begin(trained, tmp_path, 2)
    reshard.join_part(tmp_path / "a", "2/2")
    for name in ("a", "b"):
        with pytest.raises(StorageError, match=r"the parts 1/2 \(not begun\) of .* are missing"):
            reshard.commit(tmp_path / name)
    reshard.join_part(tmp_path / "a", "1/2")
    assert reshard.commit(tmp_path / "a").target == str(tmp_path / "a")
    assert names_in(tmp_path) == ["a", "b"]


def test_a_commit_that_was_killed_between_two_targets(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(trained, tmp_path, 2)
    for number in (1, 2):
        reshard.join_part(tmp_path / "a", f"{number}/2")
    real, published = committing.prove_and_publish, []

    def once(*words: Any) -> None:
        if published:
            raise KeyboardInterrupt
        published.append(real(*words))

    monkeypatch.setattr(committing, "prove_and_publish", once)
    with pytest.raises(KeyboardInterrupt):
        reshard.commit(tmp_path / "a")
    monkeypatch.undo()
    assert reshard.is_checkpoint(tmp_path / "a")
    assert not (tmp_path / "b").exists()
    made = reshard.commit_all(tmp_path / "a")  # the published one still names the other
    assert [each.already_done for each in made.reports] == [True, False]
    assert reshard.is_checkpoint(tmp_path / "b")
    assert names_in(tmp_path) == ["a", "b"]


def test_another_conversion_is_refused(trained: Path, tmp_path: Path) -> None:
    begin(trained, tmp_path)
    with pytest.raises(ResumeError, match="there were 3 parts and are 2"):
        begin(trained, tmp_path, 2)
    with pytest.raises(ResumeError, match=r"the targets were .*a, .*b and are .*a; give every"):
        reshard.begin_parts(trained, targets(tmp_path)[:1], 3, **LIMITS)
    with pytest.raises(ResumeError, match=r"compression was raw.* and is zstd"):
        begin(trained, tmp_path, compression="zstd")
    begin(trained, tmp_path, 2, restart=True)


def test_bad_parts(trained: Path, tmp_path: Path) -> None:
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(PlanError, match=r"parts is .*; expected"):
            begin(trained, tmp_path, wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"units of work|parts are useful"):
        begin(trained, tmp_path, 50_000)
    with pytest.raises(MissingError, match="no conversion in parts is recorded beside"):
        reshard.join_part(tmp_path / "a", "1/3")
    begin(trained, tmp_path)
    with pytest.raises(PlanError, match=r"part is 1/4, but the conversion to .* has 3 parts; give"):
        reshard.join_part(tmp_path / "a", "1/4")
    assert names_in(tmp_path) == [".a.reshard-partial", ".b.reshard-partial"]


def test_another_version_is_refused(trained: Path, tmp_path: Path) -> None:
    begin(trained, tmp_path)
    record = tmp_path / ".a.reshard-partial/parts/request"
    record.write_bytes(record.read_bytes().replace(b'"reshard": "0.1.0"', b'"reshard": "0.0.9"'))
    for do in (
        lambda: reshard.join_part(tmp_path / "a", "1/3"),
        lambda: reshard.commit(tmp_path / "a"),
        lambda: begin(trained, tmp_path),
    ):
        with pytest.raises(ResumeError, match=r"were begun with 0\.0\.9; install the same version"):
            do()


def test_restart_forgets_a_commit_that_was_interrupted(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    shutil.copytree(trained, source)
    begin(source, tmp_path, 2)
    for number in (1, 2):
        reshard.join_part(tmp_path / "a", f"{number}/2")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(committing, "prove_and_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        reshard.commit(tmp_path / "a")
    monkeypatch.undo()
    (source / "more").write_text("another state of the source")
    with pytest.raises(ResumeError, match="the source changed since"):
        begin(source, tmp_path, 2)
    begin(source, tmp_path, 2, restart=True)
    for number in (1, 2):
        reshard.join_part(tmp_path / "a", f"{number}/2")
    reshard.commit(tmp_path / "a")
    assert names_in(tmp_path) == ["a", "b", "source"]


def test_an_unfinished_run_without_parts_is_not_taken_over(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_stream, "BATCH_TASKS", 1)

    def stop(progress: Any) -> None:
        if progress.tasks_done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard.convert(trained, tmp_path / "a", layout=LAYOUT, progress=stop, **LIMITS)
    with pytest.raises(ResumeError, match=r"an unfinished run without parts has begun .*/a; run"):
        begin(trained, tmp_path)
    assert begin(trained, tmp_path, restart=True).parts == 3
