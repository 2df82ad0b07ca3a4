"""Disks that are really full, read-only or unwritable; where the machine does not let us, the seam says so instead.

A small tmpfs is mounted in a mount namespace of its own (``unshare -m``), so that nothing of it is left
when the process ends, however that ends.
"""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reshard
from tests.campaigns import campaign
from tests.robustness.faults.cases import clear
from tests.robustness.faults.faults import Failing, Fault
from tests.robustness.faults.seam import CHANGES, at_the_seam

REPOSITORY = Path(reshard.__file__).parents[1]
NEW_NAMESPACE = ["unshare", "--mount", "--propagation", "private"]

RUN = """
import json, subprocess, sys, os
from pathlib import Path
import numpy as np
import reshard
source, place, scenario, options = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
def mount(*words):
    subprocess.run(["mount", *words], check=True, stderr=subprocess.DEVNULL)
def remount(settings):
    mount("-o", f"remount,{settings}", str(place))
def act():
    return reshard.convert(source, place / "dst", workers=1, **options)
def failed(do):
    try:
        do()
    except reshard.ReshardError as error:
        return [type(error).__name__, str(error)]
    return None
mount("-t", "tmpfs", "-o", "size=9m", "none", str(place))
if scenario == "full":
    first = failed(act)
    left = sorted(p.name for p in place.iterdir())
    remount("size=64m")
elif scenario == "read-only":
    failed(act)
    remount("ro")
    first = failed(act)
    left = sorted(p.name for p in place.iterdir())
    remount("rw,size=64m")
elif scenario == "save":
    remount("size=64k")
    tree = {"w": np.random.default_rng(0).normal(size=1 << 16)}
    first = failed(lambda: reshard.save(place / "dst", tree, compression="zstd", workers=1))
    left = sorted(p.name for p in place.iterdir())
    remount("size=64m")
    reshard.save(place / "dst", tree, compression="zstd", workers=1)
    print(json.dumps([first, left, 0, reshard.verify(place / "dst").differences, []]))
    raise SystemExit
report = act()
stored = {str(p.relative_to(place)): p.read_bytes().hex() for p in place.rglob("*") if p.is_file() and p.name != "_CHECKPOINT_METADATA"}
print(json.dumps([first, left, report.resumed_bytes, reshard.verify(source, place / "dst").differences, stored]))
"""


@pytest.fixture(scope="session")
def may_mount(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this machine lets us mount a tmpfs of our own and change it; found out by trying."""
    place = str(tmp_path_factory.mktemp("mount"))
    tried = f"mount -t tmpfs -o size=64k none {place} && mount -o remount,size=128k {place}"
    try:
        command = [*NEW_NAMESPACE, "sh", "-c", tried]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False


def on_a_small_disk(scenario: str, source: Path, place: Path, **options: Any) -> Any:
    place.mkdir()
    command = [*NEW_NAMESPACE, sys.executable, "-W", "ignore", "-c", RUN]
    arguments = [str(source), str(place), scenario, json.dumps(options)]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, cwd=REPOSITORY, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []  # it was mounted there alone
    return json.loads(done.stdout.splitlines()[-1])


def undisturbed(source: Path, target: Path, **options: Any) -> dict[str, str]:
    reshard.convert(source, target, workers=1, **options)
    return {
        f"dst/{p.relative_to(target)}": p.read_bytes().hex()
        for p in target.rglob("*")
        if p.is_file() and p.name != "_CHECKPOINT_METADATA"
    }


FULL = "No space left on device; free space on that file system"


@pytest.mark.parametrize(
    ("ocdbt", "compression"),
    [(False, "none"), (False, "zstd"), (True, "zstd"), *campaign((True, "none"))],
)
def test_a_disk_that_becomes_full_and_is_then_enlarged(compression, ocdbt, large, tmp_path, may_mount):  # fmt: skip
    """The space that is needed is known beforehand only of raw output, which is refused then."""
    options = {"compression": compression, "ocdbt": ocdbt, "chunk_bytes": 1 << 19}
    if not may_mount:
        return full_at_the_seam(large, tmp_path, options)
    first, left, resumed, differences, stored = on_a_small_disk("full", large, tmp_path / "disk", **options)  # fmt: skip
    assert first is not None
    assert first[0] == "StorageError"
    if compression == "none":
        assert "its file system has only" in first[1]
        assert left == []
    else:
        assert "No space left on device" in first[1] or "RESOURCE_EXHAUSTED" in first[1]
        assert "tensor 'w" in first[1] or "of 'w" in first[1]
        assert "was kept in" in first[1]
        assert "run the same again to resume it" in first[1]
        assert left == [".dst.reshard-partial"]
        assert resumed > 0
    assert differences == 0
    if not ocdbt:
        assert stored == undisturbed(large, tmp_path / "calm", **options)
    return None


def full_at_the_seam(source: Path, work: Path, options: dict[str, Any]) -> None:
    full = Fault(errno.ENOSPC, CHANGES, lasts=True)
    options = {**options, "ocdbt": False}
    with pytest.raises(reshard.StorageError, match=FULL), at_the_seam(work, Failing(full, 60)):
        reshard.convert(source, work / "dst", workers=1, **options)
    assert reshard.convert(source, work / "dst", workers=1, **options).resumed_bytes > 0
    assert reshard.verify(source, work / "dst").differences == 0


def test_a_disk_that_becomes_full_while_live_arrays_are_saved(large, tmp_path, may_mount):
    if may_mount:
        first, left, _, differences, _ = on_a_small_disk("save", large, tmp_path / "disk")
        assert "No space left on device" in first[1]
        assert "tensor 'w'" in first[1]
        assert left == []
        assert differences == 0
        return
    import numpy as np

    full = Fault(errno.ENOSPC, CHANGES, lasts=True)
    tree = {"w": np.zeros(1 << 12)}
    with pytest.raises(reshard.StorageError, match=FULL), at_the_seam(tmp_path, Failing(full, 8)):
        reshard.save(tmp_path / "dst", tree)
    assert [p.name for p in tmp_path.iterdir()] == []


def test_a_disk_that_is_read_only_for_a_while(large, tmp_path, may_mount):
    """What an unfinished run left stays; files that are open for writing keep it from being so midway."""
    options = {"compression": "zstd", "chunk_bytes": 1 << 19}
    if may_mount:
        first, left, resumed, differences, stored = on_a_small_disk("read-only", large, tmp_path / "disk", **options)  # fmt: skip
        assert "Read-only file system; choose a target on a writable file system" in first[1]
        assert left == [".dst.reshard-partial"]
        assert resumed > 0
        assert differences == 0
        assert stored == undisturbed(large, tmp_path / "calm", **options)
        return
    fault = Fault(errno.EROFS, CHANGES, lasts=True)
    text = "Read-only file system; choose a target on a writable file system"
    with pytest.raises(reshard.StorageError, match=text), at_the_seam(tmp_path, Failing(fault, 60)):
        reshard.convert(large, tmp_path / "dst", workers=1, **options)
    clear(tmp_path)


UNPRIVILEGED = """
import json, os, shutil, sys
import reshard
from pathlib import Path
source, folder = Path(sys.argv[1]), Path(sys.argv[2])
options = {"workers": 1, "compression": "zstd", "chunk_bytes": 1 << 19}
def locked(progress):
    if progress.tasks_done == 4:
        (folder / ".dst.reshard-partial" / "checkpoint").chmod(0)
reshard.convert(source, folder / "first", **options)  # loads all code, which nobody else may read
reshard.verify(source, folder / "first")
shutil.rmtree(folder / "first")
if os.geteuid() == 0:
    os.setegid(65534); os.seteuid(65534)
try:
    reshard.convert(source, folder / "dst", progress=locked, **options)
    said = None
except reshard.ReshardError as error:
    said = [type(error).__name__, str(error)]
left = sorted(p.name for p in folder.iterdir())
(folder / ".dst.reshard-partial" / "checkpoint").chmod(0o755)
report = reshard.convert(source, folder / "dst", **options)
print(json.dumps([said, left, report.resumed_bytes, reshard.verify(source, folder / "dst").differences]))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and change."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_permission_lost_midway(large, open_folder):
    """As a user without rights, which root becomes first."""
    source, folder = shutil.copytree(large, open_folder / "src"), open_folder / "of-another"
    folder.mkdir()
    folder.chmod(0o777)
    command = [sys.executable, "-W", "ignore", "-c", UNPRIVILEGED, str(source), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr
    said, left, resumed, differences = json.loads(done.stdout.splitlines()[-1])
    assert "Permission denied; grant this user the permission" in said[1]
    assert left == [".dst.reshard-partial"]
    assert resumed > 0
    assert differences == 0
