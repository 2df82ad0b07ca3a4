"""Targets that a prefix names, as TensorFlow's are: by executors, in parts, interrupted, cleaned and recorded."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import FormatError, MissingError

PARTITION = {"partitions": [{"match": "table$", "fixed_shards": 3}]}
OPTIONS: Any = {"to": "tensorflow", "layout": PARTITION}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "saved"
    table = np.arange(4000, dtype=np.float32).reshape(100, 40)
    reshard.save(folder, {"table": table, "half": table.astype(np.float16), "step": np.int64(5)})
    return folder


def files_of(prefix: Path) -> dict[str, bytes]:
    found = prefix.parent.glob(f"{prefix.name}.*")
    return {p.name.removeprefix(prefix.name): p.read_bytes() for p in sorted(found)}


def names_in(folder: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one run makes, without what records it."""
    prefix = tmp_path_factory.mktemp("whole") / "ckpt-1"
    reshard.convert(source, prefix, **OPTIONS)
    return files_of(prefix)


@pytest.mark.parametrize("of", ["threads", "processes", "parts"])
def test_an_executor_makes_what_one_run_makes(
    of: str, source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    made: dict[str, Executor] = {
        "threads": ThreadPoolExecutor(2),
        "processes": ProcessPoolExecutor(2, get_context("spawn")),
        "parts": ThreadPoolExecutor(2),
    }
    parts = 3 if of == "parts" else None
    with made[of] as executor:
        reshard.convert(source, tmp_path / "ckpt-1", executor=executor, parts=parts, **OPTIONS)
    assert files_of(tmp_path / "ckpt-1") == whole
    assert names_in(tmp_path) == {"ckpt-1", "checkpoint"}


@pytest.mark.parametrize("count", [1, 3])
def test_parts_make_what_one_run_makes(
    count: int, source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    prefix = tmp_path / "ckpt-1"
    for number in range(count, 0, -1):
        reshard.convert_part(source, prefix, part=f"{number}/{count}", **OPTIONS)
        assert files_of(prefix) == {}
    reshard.commit(prefix)
    assert files_of(prefix) == whole
    assert names_in(tmp_path) == {"ckpt-1", "checkpoint"}
    assert reshard.convert(source, prefix, **OPTIONS).already_done


def test_parts_are_cleaned(source: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "ckpt-1"
    reshard.convert_part(source, prefix, part="1/2", **OPTIONS)
    assert reshard.clean(prefix, dry_run=True).files > 0
    reshard.clean(prefix)
    assert not list(tmp_path.iterdir())


_KILLED = """
import os, signal, sys
import reshard
from reshard.storage.local import publishing
from tests.public.test_prefix_targets import OPTIONS
link = publishing._link
def linking(staging, name):
    if name.endswith(".index"):
        os.kill(os.getpid(), signal.SIGKILL)
    link(staging, name)
publishing._link = linking
reshard.convert(*sys.argv[1:], **OPTIONS)
"""


def test_what_a_killed_run_left_is_cleaned(source: Path, tmp_path: Path) -> None:
    """Killed when data files have their names already, and the index has not."""
    prefix = tmp_path / "ckpt-1"
    command = [sys.executable, "-c", _KILLED, str(source), str(prefix)]
    died = subprocess.run(command, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert ".data-00000-of-00003" in files_of(prefix)
    assert not reshard.is_checkpoint(prefix)
    assert reshard.clean(prefix, dry_run=True).files >= 3
    reshard.clean(prefix)
    assert not list(tmp_path.iterdir())
    with pytest.raises(MissingError, match="nothing is left of an interrupted run to"):
        reshard.clean(prefix)
    reshard.convert(source, prefix, **OPTIONS)
    with pytest.raises(MissingError, match="nothing is left of an interrupted run to"):
        reshard.clean(prefix)
    assert reshard.verify(source, prefix).differences == 0


def test_digests_are_recorded_by_a_conversion_only(source: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "ckpt-1"
    reshard.convert(source, prefix, **OPTIONS)
    with pytest.raises(FormatError, match="convert it, which records them beside the target"):
        reshard.fingerprint(prefix)
    assert set(files_of(prefix)) >= {".index", ".slices.json"}
    assert reshard.verify(prefix).differences == 0
