"""Interrupted runs whose chunks share files: what they left is resumed, made anew, or never taken for output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import reshard
from reshard.errors import VerificationError
from reshard.formats.registry import open_reader
from reshard.storage.local.staging import staging_for
from tests.campaigns import rarely, singly
from tests.checkpoint_files import files_without_times
from tests.orbax_trees import save_pytree
from tests.robustness.crash.cases import CASES, FORMS, ROWS, make_tree
from tests.robustness.crash.interrupted import journal_of, journal_tasks, other_boot, stop
from tests.robustness.crash.killing import Point, run_killed
from tests.robustness.faults.cases import only

WRITER = "reshard.storage.location"
PREPARE = "reshard.conversion.resumed:prepare_files"
ALL_DONE = Point("reshard.conversion.prove:check_sources", "after")
EXCHANGED = Point("reshard.storage.local.publishing:_rename", "after")

POINTS = [
    Point(PREPARE, "before"),
    Point(PREPARE, "after"),
    Point(f"{WRITER}:write_all", "torn"),
    Point("reshard.engine.write.chunk_files:write_all", "torn", 3),
    Point("reshard.storage.local.publishing:_rename", "before"),
    EXCHANGED,
    Point("reshard.storage.local.transaction:dissolve", "before"),
]


@pytest.fixture(scope="module")
def undisturbed(sources, tmp_path_factory):
    """The bytes of each form, made once by a run that nothing disturbs."""
    root = tmp_path_factory.mktemp("undisturbed")
    for name in FORMS:
        reshard.convert(sources[CASES[name].source], root / name, **CASES[name].options)
    return {name: files_without_times(root / name) for name in FORMS}


@pytest.mark.parametrize(("form", "point"), singly([*FORMS], POINTS))
def test_killed_and_run_again(form, point, sources, undisturbed, tmp_path):
    case, target = CASES[form], tmp_path / "t"
    assert run_killed(point, sources[case.source], target, **case.options) == -9
    is_published = target.exists()
    report = reshard.convert(sources[case.source], target, **case.options)
    assert report.already_done == is_published
    assert files_without_times(target) == undisturbed[form]
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize("count", [2, 3])
def test_killed_within_the_header_that_gets_the_digests(count, sources, undisturbed, tmp_path):
    case, target = CASES["one"], tmp_path / "t"
    point = Point(f"{WRITER}:write_all", "torn", 2)
    for _ in range(count - 1):
        assert run_killed(point, sources["raw"], target, **case.options) == -9
    assert reshard.convert(sources["raw"], target, **case.options).resumed_bytes > 0
    assert files_without_times(target) == undisturbed["one"]


@pytest.mark.parametrize("form", rarely(["one", "ranks", "shards", "dcp", "distcp"], 2))
def test_killed_while_the_old_target_is_exchanged(form, sources, undisturbed, tmp_path):
    """The old target is then where the output was, with the names and sizes of the new one."""
    case, target = CASES[form], tmp_path / "t"
    tree = make_tree()
    tree["rows"] = tree["rows"] + 1
    other = save_pytree(tmp_path / "other", tree, use_ocdbt=False, use_compression=False)
    reshard.convert(other, target, **case.options)
    options = {**case.options, "overwrite": True}
    assert run_killed(EXCHANGED, sources[case.source], target, **options) == -9
    assert staging_for(target).root.exists()
    assert files_without_times(target) == undisturbed[form]
    assert reshard.convert(sources[case.source], target, **options).resumed_bytes == 0
    assert files_without_times(target) == undisturbed[form]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "t"]


def test_a_published_file_is_not_written_to_by_a_run_that_resumes(sources, undisturbed, tmp_path):
    """Killed between the two steps that publish where no rename refuses to replace: both names are of one file."""
    case, target = CASES["one"], tmp_path / "t"
    before = Point("reshard.storage.local.publishing:_rename", "before")
    assert run_killed(before, sources["raw"], target, **case.options) == -9
    (staged,) = staging_for(target).root.iterdir()
    target.hardlink_to(staged)
    held = target.open("rb")
    options = {**case.options, "overwrite": True}
    assert reshard.convert(sources["raw"], target, **options).resumed_bytes == 0
    assert {"": held.read()} == files_without_times(target) == undisturbed["one"]
    held.close()


def gone(file: Path) -> None:
    file.unlink()


def half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def sparse(file: Path) -> None:
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def one_bit(file: Path) -> None:
    damage(file, file.stat().st_size // 2)


def damage(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


LOSSES = {
    f"{loss.__name__}, {boot} boot": (loss, boot)
    for loss in (gone, half, sparse, zeros, one_bit)
    for boot in (("other",) if loss in (zeros, one_bit) else ("same", "other"))
}


@pytest.mark.parametrize(("form", "lost"), singly([*FORMS], [*LOSSES]))
def test_a_shared_file_was_lost_or_damaged(
    form: str, lost: str, sources, undisturbed, tmp_path, monkeypatch
):
    """Its chunks are written again, others are kept."""
    loss, boot = LOSSES[lost]
    case, target = CASES[form], tmp_path / "t"
    source = sources[case.source]
    assert run_killed(ALL_DONE, source, target, **case.options) == -9
    files = sorted(p for p in staging_for(target).root.iterdir())
    loss(max(files, key=lambda p: p.stat().st_size))
    if boot == "other":
        other_boot(monkeypatch)
    report = reshard.convert(source, target, **case.options)
    assert files_without_times(target) == undisturbed[form]
    assert report.resumed_bytes < report.moved_bytes
    if loss in (half, one_bit) or form in ("shards", "dcp"):
        assert report.resumed_bytes > 0


@pytest.mark.parametrize("form", rarely(["one", "ranks", "shards", "dcp", "distcp"], 2))
def test_a_resumed_run_is_killed_once_it_made_a_lost_file_anew(
    form, sources, undisturbed, tmp_path
):
    """The third run must not take the new file's zeros for what the first one wrote."""
    case, target = CASES[form], tmp_path / "t"
    source = sources[case.source]
    assert run_killed(ALL_DONE, source, target, **case.options) == -9
    for file in staging_for(target).root.iterdir():
        file.unlink()
    assert run_killed(Point(PREPARE, "after"), source, target, **case.options) == -9
    assert not journal_of(target).exists() or not any(task.chunks for task in journal_tasks(target))
    reshard.convert(source, target, **case.options)
    assert files_without_times(target) == undisturbed[form]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("strategy", ["whole", "scatter", "weave", "block"])
def test_after_a_reboot_chunks_of_every_strategy_are_checked(
    strategy, sources, tmp_path, monkeypatch
):
    options = {"to": "safetensors", "files": "ranks", "layout": ROWS, "workers": 1}
    source, target = sources["raw"], tmp_path / "t"
    if strategy == "whole":  # of chunks that are equal on both sides
        reshard.convert(source, tmp_path / "src", to="safetensors", layout=ROWS)
        source = tmp_path / "src"
    with only(strategy):
        planned = reshard.plan(source, target, **options)
        name = next(t.target for t in planned.tensors if t.strategy == strategy)
        reshard.convert(source, tmp_path / "whole", **options)
        stop(source, target, KeyboardInterrupt(), after=planned.tasks - 1, **options)
        other_boot(monkeypatch)
        first = open_reader(str(tmp_path / "whole")).locate(name, (0, 0)[: 1 + (name != "small")])
        damage(staging_for(target).root / Path(first.path).name, first.offset)
        report = reshard.convert(source, target, **options)
    assert 0 < report.resumed_bytes < report.moved_bytes
    assert files_without_times(target) == files_without_times(tmp_path / "whole")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("after", rarely([5, 20, 2, 10], 2))
def test_a_shared_file_ends_within_a_chunk_that_is_half_full(after, sources, undisturbed, tmp_path):
    target, whole, source = tmp_path / "t", tmp_path / "whole", sources["raw"]
    options = {**CASES["one"].options, "workers": 1}
    with only("scatter"):  # eight tasks fill a chunk
        reshard.convert(source, whole, **options)
        stop(source, target, KeyboardInterrupt(), after=after, **options)
        (staged,) = staging_for(target).root.iterdir()
        os.truncate(staged, open_reader(str(whole)).locate("rows", (0, 0)).offset + 10_000)
        reshard.convert(source, target, **options)
    assert files_without_times(target) == undisturbed["one"]


def test_zeros_in_the_same_boot_are_found_by_reading_back(sources, tmp_path):
    """A chunk is trusted where its file has data; what somebody writes there by hand is read back only if asked for."""
    case, target = CASES["ranks"], tmp_path / "t"
    assert run_killed(ALL_DONE, sources["raw"], target, **case.options) == -9
    zeros(max(staging_for(target).root.iterdir()))
    with pytest.raises(VerificationError, match=r"was read back with digest|does not read back: "):
        reshard.convert(sources["raw"], target, check="readback", **case.options)
    assert list(tmp_path.iterdir()) == []
