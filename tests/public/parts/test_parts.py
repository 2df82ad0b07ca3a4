"""Conversions in parts: sixteen processes that know a number, and a commit that knows all of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import (
    MissingError,
    PlanError,
    ResumeError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
)
from reshard.storage.location import locate
from reshard.storage.parts import Part, held_part, parse_part, parts_of

LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": ["x"]}, {"match": "big", "axes": [None, "x"]}],
}
LIMITS = {"max_memory": "256MiB", "workers": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    tree: dict[str, Any] = {
        f"layer_{n:02}": {"kernel": rng.standard_normal((64, 48)).astype(np.float32)}
        for n in range(20)
    }
    tree |= {f"big_{n:02}": rng.standard_normal((64, 512)).astype(np.float32) for n in range(40)}
    path = tmp_path_factory.mktemp("trained") / "1000"
    reshard.save(path, tree)
    return path


def convert_part(source: Path, target: Path | str, part: str, **options: Any) -> Any:
    given = {"layout": LAYOUT, **LIMITS, **options}
    return reshard.convert_part(source, target, part=part, **given)


def files_of(target: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file() and path.name != "_CHECKPOINT_METADATA"
    }


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd"},
        {"cast": {"float": "bfloat16"}, "check": "readback"},
        {"to": "safetensors", "file_bytes": "200KB"},
        {"to": "safetensors", "files": "ranks"},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 5])
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


_PART = """
import os, signal, sys, reshard
from reshard.engine import task_stream
from tests.public.parts.test_parts import LAYOUT, LIMITS
task_stream.BATCH_TASKS = 1
source, target, part, after = sys.argv[1:]
def kill(progress):
    if progress.tasks_done == int(after):
        os.kill(os.getpid(), signal.SIGKILL)
reshard.convert_part(source, target, part=part, layout=LAYOUT, **LIMITS, progress=kill)
"""


def killed(source: Path, target: Path, part: str, after: int) -> None:
    """Does a part until so many tasks are done."""
    words = [sys.executable, "-c", _PART, str(source), str(target), part, str(after)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL


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


@pytest.mark.parametrize("after", [1, 9, 25])
def test_a_killed_commit_goes_on(after: int, trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    for number in (1, 2, 3):
        convert_part(trained, target, f"{number}/3")
    code = f"""
import os, signal, sys, reshard
from reshard.conversion.parts import sealed_parts
from reshard.storage.local import attempts
sealed_parts.RESULTS_AT_ONCE, left, rename = 1, [{after}], os.rename
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


def test_a_source_that_changed_is_refused(trained: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "t"
    shutil.copytree(trained, source)
    for number in (1, 2):
        convert_part(source, target, f"{number}/2")
    (source / "more").write_text("new")
    with pytest.raises(ResumeError, match="the source changed since"):
        reshard.commit(target)
    assert not target.exists()


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


def test_folders_above_a_target_of_parts_are_durable(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    real = os.fsync

    def sync(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    convert_part(trained, tmp_path / "new" / "deep" / "t", "1/1")
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "deep")} <= synced


def test_a_part_that_is_at_work(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    convert_part(trained, target, "1/2")
    with held_part(locate(target), Part(2, 2)):
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
    root = tmp_path / ".t.reshard-partial/parts/00002-of-00002/checkpoint"
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


@pytest.mark.parametrize("kind", ["s3_bucket", "gcs_bucket"])
def test_parts_in_buckets(kind: str, trained: Path, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(kind)
    target = f"{bucket.url}/served/1000"
    for number in (1, 3):
        convert_part(trained, target, f"{number}/3")
    with pytest.raises(StorageError, match=r"the parts 2/3 \(not begun\) of .* are missing"):
        reshard.commit(target)
    with pytest.raises(ResumeError, match=r"parts of a conversion to .* were begun"):
        reshard.convert(trained, target, layout=LAYOUT, **LIMITS)
    convert_part(trained, target, "2/3")
    again = convert_part(trained, target, "2/3")
    assert again.resumed_bytes == again.moved_bytes
    assert not reshard.is_checkpoint(target)
    reshard.commit(target)
    names = sorted(entry["path"] for page in bucket.store().list() for entry in page)
    assert [name for name in names if "reshard" in name] == []
    whole = f"{bucket.url}/whole/1000"
    reshard.convert(trained, whole, layout=LAYOUT, **LIMITS)
    assert objects_below(bucket, "served/1000/") == objects_below(bucket, "whole/1000/")
    assert reshard.convert(trained, target, layout=LAYOUT, **LIMITS).already_done


def test_packed_files_in_a_bucket(trained: Path, s3_bucket: Any) -> None:
    options = {"to": "safetensors", "file_bytes": "2MB"}
    target, whole = f"{s3_bucket.url}/t", f"{s3_bucket.url}/whole"
    for number in (1, 2, 3):
        convert_part(trained, target, f"{number}/3", **options)
    reshard.commit(target)
    reshard.convert(trained, whole, layout=LAYOUT, **LIMITS, **options)
    assert objects_below(s3_bucket, "t/") == objects_below(s3_bucket, "whole/")


def objects_below(bucket: Any, prefix: str) -> dict[str, bytes]:
    store = bucket.store()
    names = [entry["path"] for page in store.list() for entry in page]
    return {
        name[len(prefix) :]: bytes(store.get(name).bytes())
        for name in names
        if name.startswith(prefix) and not name.endswith("_CHECKPOINT_METADATA")
    }


def test_parts_in_a_bucket_do_not_overwrite(trained: Path, s3_bucket: Any) -> None:
    with pytest.raises(PlanError, match=r"parts do not overwrite the target .* in a bucket"):
        convert_part(trained, f"{s3_bucket.url}/t", "1/2", overwrite=True)


def test_clean_removes_parts_in_a_bucket(trained: Path, s3_bucket: Any) -> None:
    convert_part(trained, f"{s3_bucket.url}/t", "1/2")
    reshard.clean(f"{s3_bucket.url}/t")
    assert [entry for page in s3_bucket.store().list() for entry in page] == []
