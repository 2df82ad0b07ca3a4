"""A power cut at every moment: afterwards there is no target, or the whole target, never a part of it."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import reshard
from reshard.storage.local import syncing
from tests.campaigns import singly
from tests.checkpoint_files import files_of
from tests.robustness.faults.cases import CASES, COLUMNS, Case, clear, convert, result, save
from tests.robustness.faults.power import Disk
from tests.robustness.faults.seam import Call, Go, at_the_seam

PARTIAL = ".dst.reshard-partial"
OURS = [case for case in CASES if case.is_ours]
OVERWRITE = (
    Case("overwrite", "raw", convert(layout=COLUMNS, overwrite=True)),
    Case("save over it", "raw", save(overwrite=True)),
)


SYNCS = ("each file", "file system")


@pytest.fixture(params=SYNCS)
def syncs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of syncing: files one by one, and, for many of them, all of the file system."""
    if request.param == "file system":
        monkeypatch.setattr(syncing, "FSYNC_FILES", 3)
    return str(request.param)


def recorded(work: Path, case: Case, watch: Callable[[Disk], None] = lambda _: None) -> Disk:
    """A run of the case whose every write, sync and rename is followed."""
    disk = Disk(work)
    disk.watch = watch
    with at_the_seam(work, disk):
        case.run(work)
    return disk


def published_at(disk: Disk) -> int:
    """Number of the event that makes the target appear."""
    (at,) = [n for n, (kind, path) in enumerate(disk.events) if kind in ("rename", "exchange") and path == "dst"]  # fmt: skip
    return at


@pytest.mark.parametrize(("case", "syncs"), singly([*OURS, *OVERWRITE], SYNCS), indirect=["syncs"])
def test_data_then_folders_then_rename_then_the_folder_above(case, syncs, work):
    if case in OVERWRITE:
        reshard.convert(work / "zstd", work / "dst")
    disk = recorded(work, case)
    at = published_at(disk)
    before, after = disk.events[:at], disk.events[at + 1 :]
    assert after[0] == ("fsync", "")
    root = f"{PARTIAL}/checkpoint"
    inside = [e for e in before if e[1] == root or e[1].startswith(f"{root}/")]
    made = {path for kind, path in inside if kind in ("create", "mkdir")}
    if syncs == "file system" and len(made) > 2:  # a folder and a file in it are synced one by one
        assert inside[-1] == ("syncfs", root)
        return
    # Reading back syncs everything once before.
    synced = [path for kind, path in inside if kind == "fsync"][-len(made) :]
    assert set(synced) == made
    first = inside.index(("fsync", synced[0]))
    assert all(kind == "fsync" for kind, _ in inside[first:])
    folders = [("mkdir", p) in before for p in synced]
    assert folders == sorted(folders)


class Synced:
    """A hook that remembers what the real files and folders held when they were synced."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.known: dict[str, bytes | list[str]] = {}
        self.unsynced: list[str] | None = None

    def __call__(self, call: Call, go: Go) -> Any:
        if call.kind in ("rename", "exchange") and call.path == str(self.work / "dst"):
            root = self.work / PARTIAL / "checkpoint"
            places = [root, *root.rglob("*")]
            self.unsynced = [str(p) for p in places if self.known.get(str(p)) != held(p)]
        done = go()
        if call.kind == "fsync":
            self.known[call.path] = held(Path(call.path))
        elif call.kind == "syncfs":
            self.known = {str(p): held(p) for p in self.work.rglob("*")}
        return done


def held(path: Path) -> bytes | list[str]:
    return sorted(p.name for p in path.iterdir()) if path.is_dir() else path.read_bytes()


@pytest.mark.parametrize(("case", "syncs"), singly([*CASES, *OVERWRITE], SYNCS), indirect=["syncs"])
def test_what_is_published_is_on_the_device_to_the_last_byte(case, syncs, work):  # noqa: ARG001  a fixture that only has to be set up
    """Compared with the real files, so that what a database writes beside the seam counts too."""
    if case in OVERWRITE:
        reshard.convert(work / "zstd", work / "dst")
    synced = Synced(work)
    with at_the_seam(work, synced):
        case.run(work)
    assert synced.unsynced == []


@pytest.mark.parametrize(("case", "syncs"), singly([*OURS, *OVERWRITE], SYNCS), indirect=["syncs"])
def test_after_a_cut_there_is_no_target_or_all_of_it(case, syncs, work):  # noqa: ARG001  a fixture that only has to be set up
    if case in OVERWRITE:
        reshard.convert(work / "zstd", work / "dst")
    before = whole(work)
    found: set[frozenset[tuple[str, bytes]]] = set()
    chance = random.Random(0)
    choices = (lambda: False, lambda: True, *(partial(chosen, chance, p) for p in (0.2, 0.5, 0.8)))

    def cut(disk: Disk) -> None:
        found.update(frozenset(target(disk.after_cut(choose)).items()) for choose in choices)

    disk = recorded(work, case, cut)
    last = target(disk.after_cut(lambda: False))
    assert last == whole(work)
    assert found == {frozenset(before.items()), frozenset(last.items())}


def chosen(chance: random.Random, probability: float) -> bool:
    return chance.random() < probability


def target(found: dict[str, bytes]) -> dict[str, bytes]:
    """The target and what is below it."""
    return {n: data for n, data in found.items() if n == "dst" or n.startswith("dst/")}


def whole(work: Path) -> dict[str, bytes]:
    if (work / "dst").is_file():
        return {"dst": (work / "dst").read_bytes()}
    below = {f"dst/{n}": data for n, data in files_of(work / "dst").items()}
    return {"dst": b"folder", **below} if (work / "dst").exists() else {}


@pytest.mark.parametrize("forgotten", ["files", "folders", "both"])
def test_the_model_notices_what_is_not_synced(forgotten, work, monkeypatch):
    """A run that leaves something out is found out: these tests can fail."""
    real = syncing.fsync

    def lazy(path: Path) -> None:
        if forgotten == ("files" if path.is_dir() else "folders"):
            real(path)

    monkeypatch.setattr(syncing, "fsync", lazy)
    found: set[frozenset[tuple[str, bytes]]] = set()

    def cut(disk: Disk) -> None:
        found.update(frozenset(target(disk.after_cut(c)).items()) for c in (lambda: False, lambda: True))  # fmt: skip

    recorded(work, CASES[0], cut)
    assert len(found) > 2


def test_new_folders_above_the_target_are_durable_before_it_appears(work):
    disk = Disk(work)
    with at_the_seam(work, disk):
        reshard.convert(work / "raw", work / "new" / "deep" / "dst", workers=1)
    at = disk.events.index(("rename", "new/deep/dst"))
    for folder, above in (("new", ""), ("new/deep", "new")):
        made = disk.events.index(("mkdir", folder))
        assert made < disk.events.index(("fsync", above), made) < at
    assert disk.after_cut(lambda: False)["new/deep/dst/_METADATA"]


@pytest.mark.parametrize("syncs", ["file system"], indirect=True)
def test_a_sync_that_was_interrupted_is_done_again(syncs, work):  # noqa: ARG001  a fixture that only has to be set up
    """Python goes on after EINTR by itself, but not in calls of the C library."""
    struck: list[str] = []

    def interrupted(call: Call, go: Go) -> Any:
        if call.kind in ("syncfs", "rename") and call.kind not in struck:
            struck.append(call.kind)
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return go()

    with at_the_seam(work, interrupted):
        CASES[0].run(work)
    assert struck == ["syncfs", "rename"]
    assert result(work)


@pytest.mark.parametrize("name", ["scatter", "zstd", "keep", "cast", "one file", "ranks"])
def test_the_same_again_after_a_cut_gives_the_same_bytes(name, work, monkeypatch):
    """Whatever of a journal and of chunks was lost or was not: after a reboot nothing wrong is believed."""
    case = next(case for case in CASES if case.name == name)
    chance, disk = random.Random(name), Disk(work)
    found: list[dict[str, bytes]] = []

    def cut(disk: Disk) -> None:
        if chance.random() < 0.05 or disk.events[-1][0] == "rename":
            found.extend(disk.after_cut(partial(chosen, chance, p)) for p in (0.5, 0.9))

    disk.watch = cut
    with at_the_seam(work, disk):
        case.run(work)
    expected = result(work)
    monkeypatch.setattr("reshard.storage.local.transaction.boot_id", lambda: "another boot")
    for state in chance.sample(found, min(6, len(found))):
        clear(work)
        restore_state(work, state)
        case.run(work)
        assert result(work) == expected


def restore_state(work: Path, state: dict[str, bytes]) -> None:
    """What the cut left beside the sources."""
    for name, data in state.items():
        if not name.startswith((PARTIAL, "dst")):
            continue
        if data == b"folder":
            (work / name).mkdir()
        else:
            (work / name).write_bytes(data)


@pytest.mark.parametrize(("release", "call"), [("5.7.19", "fsync"), ("6.1.0-x", "syncfs"), ("5.8", "syncfs"), ("?", "fsync")])  # fmt: skip
def test_kernels_that_report_nothing_about_a_file_system(release, call, work, monkeypatch):
    """syncfs reports errors from Linux 5.8 on; before, each file is asked."""
    monkeypatch.setattr(syncing, "FSYNC_FILES", 3)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release, nodename="here"))
    disk = recorded(work, CASES[0])
    kinds = [kind for kind, path in disk.events[: published_at(disk)] if "/checkpoint" in path]
    assert kinds[-1] == call
