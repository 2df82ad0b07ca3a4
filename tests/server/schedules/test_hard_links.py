"""Hard-linking a step gives links to every file, or a reason, or reports that the step is gone; never half a step."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from reshard_server.schedules.hard_links import (
    GoneError,
    StoppedError,
    link_step,
    listing,
    remove_links,
)

from tests.server.schedules.bench import write_step


def go_on() -> bool:
    return False


@pytest.fixture
def step(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return write_step(tmp_path / "run", 7)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    return tmp_path / ".reshard-held" / "abc"


def aged(step: Path, seconds: float = 60) -> Path:
    """The step as if it had been saved some time ago."""
    then = time.time() - seconds
    for path in (*step.rglob("*"), step):
        os.utime(path, (then, then))
    return step


def test_every_file_is_linked(step: Path, at: Path) -> None:
    assert link_step(step, at, requested=False, stopping=go_on) is None
    before = listing(step)
    assert listing(at).files == before.files
    assert set(listing(at).folders) == set(before.folders)
    shutil.rmtree(step)
    assert (at / "state" / "d" / "0").read_bytes() == b"weights"
    assert at.parent.stat().st_mode & 0o777 == 0o700
    remove_links(at)
    assert not at.exists()
    remove_links(at)  # twice does no harm


def test_only_links_are_removed(step: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a folder of links$"):
        remove_links(step)
    assert step.is_dir()


def test_a_step_that_is_not_there_is_gone(tmp_path: Path, at: Path) -> None:
    with pytest.raises(GoneError, match=r"^it was deleted before it could be read$"):
        link_step(tmp_path / "none", at, requested=False, stopping=go_on)
    assert not at.exists()


def test_a_step_of_empty_folders_is_gone(step: Path, at: Path) -> None:
    for path in [p for p in step.rglob("*") if p.is_file()]:
        path.unlink()
    with pytest.raises(GoneError, match=r"^it is empty: it is being deleted$"):
        link_step(step, at, requested=True, stopping=go_on)


def test_a_step_that_lost_files_earlier_is_gone_unless_asked_for(step: Path, at: Path) -> None:
    """A training run that was killed while it deleted the step."""
    (aged(step) / "state" / "d" / "0").unlink()
    with pytest.raises(GoneError) as caught:
        link_step(step, at, requested=False, stopping=go_on)
    assert str(caught.value) == (
        "some of its files were deleted after it was written; if that was intended, run this step by its number"
    )
    assert not at.exists()
    assert link_step(step, at, requested=True, stopping=go_on) is None


def test_a_step_to_which_a_file_was_added_is_whole(step: Path, at: Path) -> None:
    (aged(step) / "slices.json").write_text("{}")
    assert link_step(step, at, requested=False, stopping=go_on) is None


def test_a_copied_step_is_whole(step: Path, at: Path) -> None:
    shutil.copytree(aged(step), step.with_name("8"))
    assert link_step(step.with_name("8"), at, requested=False, stopping=go_on) is None


@pytest.mark.parametrize("nth", [0, 1, 3])
def test_deleted_while_it_is_linked(
    step: Path, at: Path, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file, one in between, and the last; deleted before they are linked, or after."""
    link, done = os.link, []

    def link_and_delete(source: Path, target: Path, *, follow_symlinks: bool) -> None:
        if len(done) == nth:
            shutil.rmtree(step)
        link(source, target, follow_symlinks=follow_symlinks)
        done.append(target)

    monkeypatch.setattr(os, "link", link_and_delete)
    with pytest.raises(GoneError, match=r"^some of its files were deleted while it was listed$"):
        link_step(step, at, requested=False, stopping=go_on)
    assert not at.exists()


def test_deleted_right_behind_the_last_link(
    step: Path, at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_delete(source: Path, target: Path, *, follow_symlinks: bool) -> None:
        link(source, target, follow_symlinks=follow_symlinks)
        if len([p for p in at.rglob("*") if p.is_file()]) == 4:
            (step / "state" / "_METADATA").unlink()

    monkeypatch.setattr(os, "link", link_and_delete)
    with pytest.raises(GoneError, match=r"^some of its files were deleted while it was listed$"):
        link_step(step, at, requested=False, stopping=go_on)
    assert not at.exists()


def test_under_a_real_deletion_it_is_whole_or_gone(tmp_path: Path) -> None:
    """Many steps are linked while another thread deletes them as Orbax does; every folder of links is complete."""
    (tmp_path / "run").mkdir()
    ends = {"held": 0, "gone": 0}
    for number in range(40):
        step = write_step(tmp_path / "run", number)
        for i in range(30):
            (step / "state" / "d" / f"c{i}").write_text(str(i))
        whole = listing(step).files
        aged(step)
        at = tmp_path / ".reshard-held" / str(number)
        wait = number % 20 * 0.0001
        killer = threading.Thread(
            target=lambda s=step, w=wait: (time.sleep(w), shutil.rmtree(s, ignore_errors=True))
        )
        killer.start()
        try:
            assert link_step(step, at, requested=False, stopping=go_on) is None
            assert set(listing(at).files) == set(whole)
            ends["held"] += 1
        except GoneError:
            assert not at.exists()
            ends["gone"] += 1
        killer.join()
    assert sum(ends.values()) == 40


def test_a_step_with_a_link_in_it_is_not_held(step: Path, at: Path) -> None:
    (step / "state" / "more").symlink_to("d")
    why = link_step(step, at, requested=False, stopping=go_on)
    assert why == "7/state/more is neither a file nor a folder"
    assert not at.exists()


def test_where_no_folder_can_be_made_it_is_not_held(step: Path, at: Path) -> None:
    at.parent.write_text("a file in its place")
    why = link_step(step, at, requested=False, stopping=go_on)
    assert why == "hard links cannot be made here: File exists"


def test_a_server_that_ends_leaves_no_hold(step: Path, at: Path) -> None:
    with pytest.raises(StoppedError):
        link_step(step, at, requested=False, stopping=lambda: True)
    assert not at.exists()
