"""Sources that are missing, incomplete, no checkpoints, or removed during a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.engine.progress import Progress
from reshard.errors import (
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    ReshardError,
    StorageError,
)
from tests.formats.orbax.by_hand import write_tree
from tests.orbax_trees import save_pytree
from tests.robustness.bad_input.checking import (
    refused,
    refused_by_command,
)


def test_source_is_missing(tmp_path, capsys):
    text = f"{tmp_path}/src does not exist: expected the directory of a checkpoint; check the path"
    refused(tmp_path / "src", tmp_path / "dst", StorageError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", "'' is no path; expected the directory of a checkpoint"),
        ("a\0b", "is no path; expected the directory of a checkpoint"),
        ("ftp://host/c", "ftp://host/c: reading from ftp:// is not supported; give a local path, or a URL"),
        ("file://a", "should be file:// with an absolute path"),
        ("x" * 5000, "File name too long; choose a shorter name"),
        (None, "the source is None; expected a path"),
        (7, "the source is 7; expected a path"),
    ],
)  # fmt: skip
def test_source_is_no_usable_path(source, text, tmp_path):
    with pytest.raises(StorageError) as caught:
        reshard.convert(source, tmp_path / "dst")
    assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_source_leads_in_a_circle(tmp_path, capsys):
    (tmp_path / "src").symlink_to("src")
    text = "Too many levels of symbolic links; remove the symbolic link"
    refused(tmp_path / "src", tmp_path / "dst", StorageError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)


def test_source_is_no_checkpoint(tmp_path, capsys):
    (tmp_path / "src").mkdir()
    (tmp_path / "file").write_text("x")
    text = (
        "is not a checkpoint of a known format: looked for Orbax (_METADATA, _CHECKPOINT_METADATA"
    )
    refused(tmp_path / "src", tmp_path / "dst", NotACheckpointError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)
    text = "; it is a file, expected a safetensors file or the directory"
    refused(tmp_path / "file", tmp_path / "dst", NotACheckpointError, text)
    refused_by_command(capsys, tmp_path / "file", tmp_path / "dst", text)


def test_source_is_a_whole_training_run(source, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copytree(source, tmp_path / "run" / "9")
    shutil.copytree(source, tmp_path / "run" / "12")
    text = "is a training run's folder with steps 9, 12; choose one with step=N or step='latest'"
    named = f", or name one of them: {tmp_path}/run/12"
    refused(tmp_path / "run", tmp_path / "dst", NotACheckpointError, text, named)


@pytest.mark.parametrize("which", [{"step": 1}, {"step": "latest"}, {"item": "m"}])
def test_source_of_a_step_or_an_item_is_no_usable_path(which, tmp_path):
    for path in ("x" * 300, tmp_path / "none", tmp_path / ("a/" * 3000)):
        refused(path, tmp_path / "dst", StorageError, str(path)[:20], **which)


def test_source_is_half_written(source, tmp_path, capsys):
    temporary = source.rename(tmp_path / "src.orbax-checkpoint-tmp-17")
    text = "is a temporary folder of a save that was never committed"
    refused(temporary, tmp_path / "dst", IncompleteCheckpointError, text)
    refused_by_command(capsys, temporary, tmp_path / "dst", text)


def test_names_that_collide_once_joined(tmp_path, capsys):
    save_pytree(tmp_path / "src", {"a.b": {"c": np.arange(3)}, "a": {"b.c": np.arange(3) + 5}})
    text = "the paths ('a', 'b.c') and ('a.b', 'c') both become 'a.b.c' once joined"
    refused(tmp_path / "src", tmp_path / "dst", FormatError, text)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text)


def test_names_that_lead_elsewhere(tmp_path):
    (tmp_path / "src").mkdir()
    write_tree(tmp_path / "src", [["../../evil"]])
    refused(tmp_path / "src", tmp_path / "dst", FormatError, "'../../evil'", "cannot name files")


@pytest.fixture
def one_task_at_a_time(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options under which something can happen between two tasks, however small they are."""
    monkeypatch.setattr("reshard.engine.task_stream.BATCH_TASKS", 1)
    return {"workers": 1}


@pytest.mark.parametrize("kind", ["plain", "zstd"])
def test_source_vanishes_midway(kind, saved, tmp_path, one_task_at_a_time):
    source = Path(shutil.copytree(saved[kind], tmp_path / "src"))

    def vanish(_: Progress) -> None:
        shutil.rmtree(source, ignore_errors=True)

    with pytest.raises(ReshardError) as caught:
        reshard.convert(source, tmp_path / "dst", progress=vanish, **one_task_at_a_time)
    assert str(source) in str(caught.value) or "not stored" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
