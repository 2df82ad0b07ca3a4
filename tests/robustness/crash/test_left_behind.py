"""What an unfinished run left is gone on with, refused or thrown away: damage, reboots, changes, failures."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from reshard import api
from reshard.cli.app import run as run_command
from reshard.conversion import convert
from reshard.conversion.report import TensorReport
from reshard.conversion.resume import check_chunks as believed
from reshard.conversion.resume import cleanup as unfinished
from reshard.conversion.resume import resume
from reshard.conversion.resume.journal import Journal, read_finished
from reshard.engine import task_stream as tasks
from reshard.errors import (
    CorruptError,
    ReshardError,
    ResumeError,
    SourceChangedError,
    StorageError,
    SyncError,
    TargetExistsError,
    VerificationError,
)
from reshard.storage import syncing
from reshard.storage.checked_lines import checked_line
from reshard.storage.staging import staging_for
from tests.robustness.crash.cases import CASES, ROWS
from tests.robustness.crash.left import content, journal_of, journal_tasks
from tests.source_reads import Reads

CASE = CASES["weave"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(tasks, "BATCH_TASKS", 1)


@pytest.fixture(scope="module")
def source(sources):
    return sources["raw"]


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    target = tmp_path_factory.mktemp("expected") / "t"
    api.convert(source, target, **CASE.options)
    return content(target)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "t"


def stop(
    source: Path, target: Path, error: BaseException, after: int = 5, **options
) -> BaseException:
    """A run that ends by ``error`` once so many tasks were recorded."""
    real, calls = Journal.append, []

    def failing(self, finished):
        real(self, finished)
        calls.append(1)
        if len(calls) == after:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", failing)
        with pytest.raises(type(error)) as caught:
            api.convert(source, target, **(options or CASE.options))
    return caught.value


@pytest.fixture
def left(source, target):
    """An unfinished run to ``target``."""
    stop(source, target, KeyboardInterrupt())
    return staging_for(target)


def other_boot(monkeypatch):
    monkeypatch.setattr(resume, "boot_id", lambda: "another boot")


def chunk_files(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("c*") if p.is_file())


# ---- kept or removed ----


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        StorageError("full"),
        ReshardError("executor"),
        MemoryError(),
        SystemExit(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_kept_and_said_so(error, source, target, expected):
    caught = stop(source, target, error)
    said = str(caught) + "".join(getattr(caught, "__notes__", []))
    assert f"% of 5.00 MiB) was kept in '{staging_for(target).folder}': run the same again" in said
    assert not target.exists()
    report = api.convert(source, target, **CASE.options)
    assert report.resumed_bytes > 0
    assert content(target) == expected


@pytest.mark.parametrize(
    "error",
    [
        VerificationError("differs"),
        CorruptError("damaged"),
        SyncError("lost"),
        SourceChangedError("new"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_removed_where_it_is_not_believed(error, source, target):
    caught = stop(source, target, error)
    assert "kept" not in str(caught)
    assert list(target.parent.iterdir()) == []


def test_nothing_is_kept_of_nothing(source, target, monkeypatch):
    def fail(*_):
        raise StorageError("at once")

    monkeypatch.setattr(convert, "run_multi", fail)
    with pytest.raises(StorageError, match=r"^at once$"):
        api.convert(source, target, **CASE.options)
    assert list(target.parent.iterdir()) == []


def test_a_failed_sync_is_no_ground_to_go_on(source, target, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(
        SyncError, match=r"cannot sync .*; the device reports a read or write error"
    ):
        syncing.sync_tree(source)
    monkeypatch.setattr(convert, "publish", lambda s, **_: syncing.sync_tree(s.root))
    with pytest.raises(SyncError):
        api.convert(source, target, **CASE.options)
    assert not staging_for(target).root.exists()
    assert not journal_of(target).exists()


# ---- the journal ----


def damage_torn(data: bytes) -> bytes:
    return data[:-7]


def damage_flipped(data: bytes) -> bytes:
    at = data.index(b"\n") + 40
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def damage_twice(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([lines[0], *(line for line in lines[1:] for _ in range(2))])


def damage_no_header(data: bytes) -> bytes:
    return data.partition(b"\n")[2]


def damage_garbage(data: bytes) -> bytes:
    return data + b"\0" * 4096


def damage_foreign(data: bytes) -> bytes:
    """Whole lines that make no sense."""
    wrong = [[], {}, 3, [[99, 0, 0, 0, 0, 0, 1, None, []]], [[0, 10**9, 0, 0, 0, 0, 1, None, []]],
             [[0, 0, 0, 0, 0, 0, 1, None, [[[10**9], 0, 4, 4]]]], [[0, -1, "x", 0, 0, 0, 1, None, []]]]  # fmt: skip
    return data + b"".join(checked_line(json.dumps(line)) for line in wrong[::-1])


DAMAGES = [damage_torn, damage_flipped, damage_twice, damage_no_header, damage_garbage, damage_foreign,
           lambda _: b"", lambda data: checked_line("[" * 100_000) + data]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_believed_as_far_as_it_is_whole(
    damage, left, source, target, expected
):
    left.journal.write_bytes(damage(left.journal.read_bytes()))
    api.convert(source, target, **CASE.options)
    assert content(target) == expected
    assert [p.name for p in target.parent.iterdir()] == ["t"]


def test_a_flipped_byte_anywhere_in_it(left, source, target):
    """The last line is found by its own checksum only, so every byte of a line counts."""
    data = left.journal.read_bytes()
    start = data.rindex(b"\n", 0, -1) + 1
    before = len(journal_tasks(target))
    plan = api.plan(source, target, **CASE.options).plan
    for at in range(start, len(data)):
        left.journal.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = list(read_finished(left.journal, plan))
        assert len(found) == before - 1


# ---- what it speaks of ----


def test_a_chunk_that_was_removed_is_done_again(left, source, target, expected):
    for file in chunk_files(left.root)[::2]:
        file.unlink()
    report = api.convert(source, target, **CASE.options)
    assert content(target) == expected
    assert report.resumed_bytes < report.moved_bytes


def test_files_of_another_length_are_done_again(left, source, target, expected):
    for file in chunk_files(left.root):
        with file.open("ab") as opened:
            opened.write(b"more")
    api.convert(source, target, **CASE.options)
    assert content(target) == expected


def test_what_nothing_speaks_of_is_removed(left, source, target, expected, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (left.root / "stray").write_text("x")
    (left.root / "rows" / "link").symlink_to(tmp_path / "precious")
    api.convert(source, target, **CASE.options)
    assert content(target) == expected
    assert (tmp_path / "precious" / "file").read_text() == "kept"


@pytest.mark.parametrize("loss", ["nothing", "gone", "empty", "zeros", "half", "one bit"])
@pytest.mark.parametrize("name", ["scatter", "weave", "zstd", "copy", "cast"])
def test_after_a_reboot_only_what_reads_back_is_kept(name, loss, sources, tmp_path, monkeypatch):
    case, target = CASES[name], tmp_path / "t"
    source = sources[case.source]
    api.convert(source, tmp_path / "whole", **case.options)
    stop(source, target, KeyboardInterrupt(), **case.options)
    other_boot(monkeypatch)
    for file in chunk_files(staging_for(target).root)[::2]:
        lose(file, loss)
    report = api.convert(source, target, **case.options)
    assert content(target) == content(tmp_path / "whole")
    if loss == "nothing" and name != "copy":
        assert report.resumed_bytes > 0


def lose(file: Path, loss: str) -> None:
    data = file.read_bytes()
    if loss == "gone":
        file.unlink()
    elif loss != "nothing":
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        lost = {"empty": b"", "zeros": bytes(len(data)), "half": data[:middle], "one bit": flipped}
        file.write_bytes(lost[loss])


def test_after_a_reboot_the_journal_is_of_this_boot(left, source, target, expected, monkeypatch):
    other_boot(monkeypatch)
    stop(source, target, KeyboardInterrupt(), after=7)
    assert json.loads(left.journal.read_bytes().partition(b"\n")[0][9:])["boot"] == "another boot"
    monkeypatch.setattr(resume, "damaged", None)  # not asked again
    api.convert(source, target, **CASE.options)
    assert content(target) == expected


def test_after_a_reboot_a_database_is_made_anew(sources, target, monkeypatch):
    options = CASES["ocdbt"].options
    stop(sources["raw"], target, KeyboardInterrupt(), **options)
    other_boot(monkeypatch)
    assert api.convert(sources["raw"], target, **options).resumed_bytes == 0
    assert api.verify(sources["raw"], target).differences == 0


@pytest.mark.usefixtures("left")
def test_reading_again_stays_within_pieces(source, target, monkeypatch, expected):
    monkeypatch.setattr(believed, "READ_BYTES", 1000)
    other_boot(monkeypatch)
    stages = []
    report = api.convert(source, target, progress=lambda p: stages.append(p.stage), **CASE.options)
    assert report.resumed_bytes > 0
    assert stages[0] == "checking"
    assert content(target) == expected


# ---- another conversion ----


CHANGES = {
    "chunk_bytes was 256 MiB and is 32768 bytes": {"chunk_bytes": 32768},
    "compression was raw[+]crc32c and is zstd:1[+]crc32c": {"compression": "zstd"},
    r"drop was \[\] and is \['small'\]": {"drop": ["small"]},
    r"cast was \[\] and is \['rows=bfloat16'\]": {"cast": [("rows", "bfloat16")]},
    "ocdbt was False and is True": {"ocdbt": True},
    "style was None and is v1": {"style": "v1"},
    "layout was .* and is as in the source": {"layout": None, "compression": "keep"},
    # The chunks are the same, but not what is recorded of them.
    "layout was .* and is .*'axes': .'y'.": {
        "layout": {
            **ROWS,
            "mesh": {"axes": ["y"], "shape": [4]},
            "rules": [{"match": "rows|both", "axes": ["y"]}],
        }
    },
}


@pytest.mark.parametrize("text", CHANGES)
def test_another_conversion_is_refused_by_name(text, left, source, target, expected):
    before = left.journal.read_bytes()
    with pytest.raises(
        ResumeError, match=f"another conversion: .*{text}.*give the same again.*restart"
    ):
        api.convert(source, target, **{**CASE.options, **CHANGES[text]})
    assert left.journal.read_bytes() == before
    assert api.convert(source, target, **CASE.options).resumed_bytes > 0
    assert content(target) == expected


@pytest.mark.usefixtures("left")
def test_options_that_change_no_task_do_not_matter(source, target, expected):
    options = {**CASE.options, "max_memory": "65MiB", "check": "readback", "overwrite": True}
    assert api.convert(source, target, **options).resumed_bytes > 0
    assert content(target) == expected


@pytest.mark.usefixtures("left")
def test_restart_starts_over(source, target):
    options = {**CASE.options, "cast": [("rows", "bfloat16")]}
    report = api.convert(source, target, restart=True, **options)
    assert report.resumed_bytes == 0
    assert {t.target_dtype for t in report.tensors if t.target == "rows"} == {"bfloat16"}
    assert [p.name for p in target.parent.iterdir()] == ["t"]


def test_a_source_that_changed_between_the_runs(source, target, tmp_path):
    own = Path(shutil.copytree(source, tmp_path / "own"))
    stop(own, target, KeyboardInterrupt())
    file = next(p for p in own.rglob("*") if p.is_file())
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    with pytest.raises(ResumeError, match="another conversion: the source changed since; "):
        api.convert(own, target, **CASE.options)
    with pytest.raises(ResumeError, match=r"the source was '.*own' and is '.*raw'"):
        api.convert(source, target, **CASE.options)
    assert api.convert(own, target, restart=True, **CASE.options).resumed_bytes == 0


@pytest.mark.parametrize("change", ["touched", "added", "grown", "replaced"])
def test_a_source_that_changed_while_it_was_read(change, source, target, tmp_path):
    own = Path(shutil.copytree(source, tmp_path / "own"))

    def change_it(progress):
        if progress.tasks_done == progress.tasks and progress.stage == "copying":
            file = own / "small" / "0"
            file = file if file.exists() else next(p for p in own.rglob("*") if p.is_file())
            data = file.read_bytes()
            if change == "added":
                (own / "new").write_text("x")
            elif change == "touched":
                os.utime(file, ns=(0, 1))
            elif change == "grown":
                file.write_bytes(data + b"x")
            else:
                file.unlink()
                file.write_bytes(data)

    with pytest.raises(
        SourceChangedError, match=r"changed while it was read.*the output was discarded"
    ):
        api.convert(own, target, progress=change_it, **CASE.options)
    assert [p.name for p in tmp_path.iterdir()] == ["own"]


# ---- nothing to do ----


def test_a_finished_target_is_left_alone(source, target, expected, capsys):
    api.convert(source, target, **CASE.options)
    before = {p: p.stat().st_mtime_ns for p in [target, *target.rglob("*")]}
    report = api.convert(source, target, **{**CASE.options, "workers": 1})
    assert report.already_done
    assert {p: p.stat().st_mtime_ns for p in [target, *target.rglob("*")]} == before
    again = api.convert(source, target, overwrite=True, **CASE.options)
    assert not again.already_done
    assert content(target) == expected
    assert run_command(["convert", str(source), str(target.parent / "u")]) == 0
    assert run_command(["convert", str(source), str(target.parent / "u"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["already_done"] is True
    assert told["nbytes"] == sum(t.nbytes for t in report.tensors)
    assert {t["target"]: t["target_digest"] for t in told["tensors"]} == {
        t.target: t.target_digest for t in report.tensors
    }


@pytest.mark.parametrize("name", ["weave", "cast", "copy", "ocdbt"])
def test_a_finished_target_tells_what_it_records(name, sources, target):
    case = CASES[name]
    made = api.convert(sources[case.source], target, **case.options)
    again = api.convert(sources[case.source], target, **case.options)
    assert again.already_done
    assert list(map(kept, again.tensors)) == list(map(kept, made.tensors))
    assert any(t.target_digest for t in again.tensors) == (name != "copy")
    assert {
        (t.source, t.source_dtype, t.strategy, t.source_digest, t.proof, t.cast)
        for t in again.tensors
    } == {(None,) * 6}


def test_what_travelled_encoded_is_told_with_the_digest_that_its_source_recorded(
    sources, target, tmp_path
):
    made = api.convert(sources["raw"], target, compression="zstd")
    recorded = {t.target: t.target_digest for t in made.tensors}
    copy = api.convert(target, tmp_path / "copy", compression="keep")
    assert {t.strategy for t in copy.tensors} == {"copy"}
    again = api.convert(target, tmp_path / "copy", compression="keep")
    assert again.already_done
    assert {t.target: t.target_digest for t in again.tensors} == recorded


def test_a_finished_target_of_several_items_tells_all_tensors(target, tmp_path):
    with ocp.CheckpointManager(tmp_path / "run", item_names=("state", "ema")) as manager:
        state = {"w": np.arange(8, dtype=np.int32), "b": np.ones(3, np.float32)}
        trees = {
            n: ocp.args.PyTreeSave(t) for n, t in (("state", state), ("ema", {"w": state["w"]}))
        }
        manager.save(1, args=ocp.args.Composite(**trees))
        manager.wait_until_finished()
    made = api.convert(tmp_path / "run" / "1", target)
    again = api.convert(tmp_path / "run" / "1", target)
    assert {t.target for t in again.tensors} == {"state/w", "state/b", "ema/w"}
    assert list(map(kept, again.tensors)) == list(map(kept, made.tensors))
    assert all(t.target_digest for t in again.tensors)


def test_no_tensor_is_read_to_tell_what_a_finished_target_records(source, target, monkeypatch):
    api.convert(source, target, **CASE.options)
    reads = Reads(monkeypatch)
    assert all(t.target_digest for t in api.convert(source, target, **CASE.options).tensors)
    monkeypatch.undo()
    assert str(target / "slices.json") in reads.intervals
    assert not {str(file) for file in chunk_files(target)} & reads.intervals.keys()


def kept(tensor: TensorReport) -> tuple:
    """What a finished target records of a tensor."""
    return tensor.target, tensor.shape, tensor.target_dtype, tensor.nbytes, tensor.target_digest


def test_any_other_target_is_refused(source, target, tmp_path):
    api.convert(source, target, **CASE.options)
    own = Path(shutil.copytree(source, tmp_path / "own"))
    for other in ({"compression": "zstd"}, {"layout": None}, {"drop": ["small"]}, {"style": "v1"}):
        with pytest.raises(TargetExistsError, match="exists already and was left untouched"):
            api.convert(source, target, **{**CASE.options, **other})
    with pytest.raises(TargetExistsError):
        api.convert(own, target, **CASE.options)
    (target / "slices.json").unlink()
    with pytest.raises(TargetExistsError):
        api.convert(source, target, **CASE.options)


def test_what_another_version_left_is_refused_and_kept(left, source, target):
    lines = left.journal.read_bytes().split(b"\n")
    header = {**json.loads(lines[0][9:]), "version": 2}
    newer = checked_line(json.dumps(header)) + b"\n".join(lines[1:])
    left.journal.write_bytes(newer)
    with pytest.raises(
        ResumeError, match=r"another version of reshard: .*has version 2, expected 1"
    ):
        api.convert(source, target, **CASE.options)
    assert left.journal.read_bytes() == newer
    assert api.convert(source, target, restart=True, **CASE.options).resumed_bytes == 0


def test_a_journal_that_is_a_pipe_is_not_waited_for(source, target):
    left = staging_for(target)
    left.folder.mkdir()
    os.mkfifo(left.journal)
    assert api.convert(source, target, **CASE.options).resumed_bytes == 0


def test_what_another_conversion_left_is_not_removed(source, target):
    """It may take the target's place later; that the target is finished is no reason to lose it."""
    api.convert(source, target, **CASE.options)
    other = {**CASE.options, "cast": [("rows", "bfloat16")], "overwrite": True}
    stop(source, target, KeyboardInterrupt(), 5, **other)
    assert api.convert(source, target, **CASE.options).already_done
    assert staging_for(target).journal.exists()
    assert api.convert(source, target, **other).resumed_bytes > 0
    assert [p.name for p in target.parent.iterdir()] == ["t"]


@pytest.mark.parametrize(
    ("compression", "keeps"), [("none", 0), ("none", 100), ("keep", 100), ("zstd", None)]
)
def test_a_finished_target_that_lost_bytes_is_not_called_done(compression, keeps, source, target):
    """A chunk is gone (None), or has another size than a raw one must have."""
    options = {**CASE.options, "compression": compression}
    api.convert(source, target, **options)
    chunk = chunk_files(target)[1]
    chunk.unlink() if keeps is None else os.truncate(chunk, keeps)
    said = rf"{target}' is the finished result of this .* was damaged since: tensor .*, chunk"
    with pytest.raises(CorruptError, match=said):
        api.convert(source, target, **options)
    assert not api.convert(source, target, overwrite=True, **options).already_done


# ---- published by whom, and over what ----


def test_a_chunk_that_vanished_is_not_published(source, target):
    def remove_one(progress):
        if progress.tasks_done == progress.tasks and progress.stage == "copying":
            for file in chunk_files(staging_for(target).root)[:1]:
                file.unlink()

    with pytest.raises(
        StorageError, match=r"tensor '\w+', chunk \[.*\]: it was written, but is not whole"
    ):
        api.convert(source, target, progress=remove_one, **CASE.options)
    assert not target.exists()
    assert api.convert(source, target, **CASE.options).resumed_bytes > 0


def test_the_callers_folder_may_change_meanwhile(source, target, expected, monkeypatch):
    monkeypatch.chdir(target.parent)
    elsewhere = target.parent / "elsewhere"
    elsewhere.mkdir()
    report = api.convert(
        os.path.relpath(source), "t", progress=lambda _: os.chdir(elsewhere), **CASE.options
    )
    assert (report.source, report.target) == (os.path.relpath(source, target.parent), "t")
    assert content(target) == expected
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_appears_meanwhile_is_not_overwritten(source, target):
    def appear(progress):
        if progress.stage == "syncing":
            target.mkdir()
            (target / "precious").write_text("x")

    with pytest.raises(TargetExistsError, match="something else than a checkpoint"):
        api.convert(source, target, overwrite=True, progress=appear, **CASE.options)
    assert [p.name for p in target.iterdir()] == ["precious"]
    shutil.rmtree(target)
    assert api.convert(source, target, **CASE.options).resumed_bytes > 0


def test_a_journal_that_was_written_anew_leaves_nothing(left, source, target, monkeypatch):
    def fail(_):
        raise SyncError("lost")

    monkeypatch.setattr(resume, "fsync", fail)
    with pytest.raises(SyncError):
        api.convert(source, target, **CASE.options)
    assert not left.folder.exists()
    left.folder.mkdir()
    left.next_journal.write_text("half")
    api.convert(source, target, **CASE.options)
    assert not left.folder.exists()


# ---- what it says ----


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("step", ["publish", "dissolve"])
def test_stopped_once_it_is_published(step, overwrite, source, target, expected, monkeypatch):
    module = convert if step == "publish" else unfinished
    real = getattr(module, step)

    def stopped(*arguments, **options):
        real(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, step, stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        api.convert(source, target, overwrite=overwrite, **CASE.options)
    assert caught.value.__notes__ == [f"'{target}' is published and whole"]
    monkeypatch.undo()
    assert api.convert(source, target, **CASE.options).already_done
    assert content(target) == expected
    assert [p.name for p in target.parent.iterdir()] == ["t"]


@pytest.mark.usefixtures("left")
def test_progress_and_report_tell_what_was_done_before(source, target):
    seen = []
    report = api.convert(source, target, progress=seen.append, **CASE.options)
    assert seen[0].resumed_bytes == seen[0].moved_bytes == report.resumed_bytes > 0
    assert seen[-1].moved_bytes == seen[-1].total_bytes == report.moved_bytes


@pytest.mark.usefixtures("left")
def test_room_is_asked_for_what_is_still_to_be_written(source, target, monkeypatch):
    whole = api.plan(source, target, **CASE.options).written_bytes
    monkeypatch.setattr("reshard.conversion.prepare.free_bytes", lambda _: whole - 1)
    report = api.convert(source, target, **CASE.options)
    assert report.resumed_bytes > 0
