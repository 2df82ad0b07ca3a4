"""Detection of formats, and what is said where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from reshard.errors import NotACheckpointError, StorageError
from reshard.formats.detect import local_path, open_reader
from tests.orbax_trees import save_manager, save_pytree


def refused(uri, error, message):
    with pytest.raises(error) as caught:
        open_reader(str(uri))
    assert message in str(caught.value)


def test_nothing_there(tmp_path):
    refused(
        tmp_path / "x",
        StorageError,
        f"{tmp_path}/x does not exist; expected the directory of a checkpoint",
    )


@pytest.mark.parametrize("scheme", ["gs", "s3", "https"])
def test_object_stores(scheme):
    refused(
        f"{scheme}://bucket/c",
        StorageError,
        f"reading from {scheme}:// is not supported yet; copy the checkpoint",
    )


@pytest.mark.parametrize(
    "uri", ["file://relative/c", "file:///a%2e", "file:///a|b", "file:///a?b", "file:///a#b"]
)
def test_unclean_urls(uri):
    refused(uri, StorageError, "should be file:// with an absolute path without any of % ? # |")


@pytest.mark.parametrize("uri", ["", "a\0b"])
def test_no_path(uri):
    refused(uri, StorageError, "is no path; expected the directory of a checkpoint")


def test_paths_that_the_system_refuses():
    refused("x" * 5000, StorageError, "File name too long; choose a shorter name")


def test_local_paths():
    assert local_path("a/b") == "a/b"
    assert local_path("file:///a/b") == "/a/b"


def test_not_a_checkpoint(tmp_path):
    (tmp_path / "sub").mkdir()
    refused(
        tmp_path, NotACheckpointError,
        f"{tmp_path} is not a checkpoint of a known format; looked for Orbax (_METADATA, _CHECKPOINT_METADATA, "
        "orbax.checkpoint)",
    )  # fmt: skip
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", NotACheckpointError, "; it is a file, expected a directory")


def test_the_folder_of_a_run_names_its_latest_step(tmp_path):
    root = tmp_path / "run"
    save_manager(root, {"a": np.arange(3)})
    for step in ("9", "12", "7.orbax-checkpoint-tmp-1"):
        (root / step).mkdir()
    refused(
        root,
        NotACheckpointError,
        f"it holds steps of a training run, so name one of them: {root}/12",
    )


def test_a_folder_of_named_checkpoints_is_none(tmp_path):
    save_pytree(tmp_path / "best", {"a": np.arange(3)})
    refused(tmp_path, NotACheckpointError, "is not a checkpoint of a known format")


def test_a_step_without_its_record_as_old_versions_wrote_it(tmp_path):
    step = save_manager(tmp_path / "run", {"a": np.arange(3)})
    (step / "_CHECKPOINT_METADATA").unlink()
    reader = open_reader(str(step))
    assert list(reader.tensors) == ["a"]
    assert reader.container.items[0].name == "default"


@pytest.mark.parametrize("name", ["a\\b", "\udcff", "a\\b/../c\\d"])
@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_paths_that_tensorstore_would_take_for_others(name, form, tmp_path):
    with pytest.raises(StorageError) as caught:
        local_path(form.format(f"{tmp_path}/{name}"))
    assert "holds a backslash or bytes that are not UTF-8" in str(caught.value)
    str(caught.value).encode()


def test_a_working_directory_that_tensorstore_would_take_for_another(tmp_path, monkeypatch):
    (tmp_path / "a\\b").mkdir()
    monkeypatch.chdir(tmp_path / "a\\b")
    refused("c", StorageError, "holds a backslash")
    refused("../c", StorageError, "holds a backslash")
    monkeypatch.chdir(tmp_path)
    assert local_path("c") == "c"
