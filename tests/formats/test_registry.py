"""Detection of formats, and the error when no format is found."""

from __future__ import annotations

import shutil
from typing import get_args

import numpy as np
import pytest

import reshard
from reshard.conversion.options import ConvertOptions
from reshard.errors import FormatError, NotACheckpointError, StorageError
from reshard.formats import registry
from reshard.formats.format import PlaceNames
from reshard.formats.known_formats import FORMATS, format_names, mark_of
from reshard.formats.marks import MARKS
from reshard.formats.registry import open_reader
from reshard.storage.local.store import LocalStore
from reshard.storage.location import local_path, locate
from tests.orbax_trees import save_manager, save_pytree


def refused(uri, error, message):
    with pytest.raises(error) as caught:
        open_reader(str(uri))
    assert message in str(caught.value)


def test_nothing_there(tmp_path):
    refused(
        tmp_path / "x",
        StorageError,
        f"{tmp_path}/x does not exist: expected the directory of a checkpoint; check the path",
    )


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("tf/stepp", "tf/step"),
        ("tf/other", ""),
        ("dcp/step", "dcp/step-10"),
        ("dcp/step-10x/", "dcp/step-10"),
        ("st/m.safetensor", "st/m.safetensors"),
        ("dcp/step-10/ckpt", "dcp/step-10"),
        ("tfx/step", ""),
        ("readmes", ""),
    ],
)
def test_a_mistyped_name_tells_the_nearest_checkpoint(saved_beside, asked, nearest):
    words = f"; the nearest that is there: {saved_beside}/{nearest}" if nearest else ""
    path = f"{saved_beside}/{asked}"
    with pytest.raises(StorageError) as caught:
        open_reader(path)
    assert str(caught.value) == (
        f"{path} does not exist: expected the directory of a checkpoint; check the path{words}"
    )


def test_a_folder_of_very_many_is_not_searched(saved_beside, monkeypatch):
    monkeypatch.setattr(registry, "_MOST_NAMES", 1)
    with pytest.raises(StorageError) as caught:
        open_reader(str(saved_beside / "tf" / "stepp"))
    assert str(caught.value).endswith("check the path")


@pytest.fixture(scope="module")
def saved_beside(tmp_path_factory):
    """Checkpoints of several formats, and a file that is none."""
    folder = tmp_path_factory.mktemp("beside")
    reshard.save(folder / "saved", {"w": np.arange(3)})
    for name, to in (("tf/step", "tensorflow"), ("dcp/step-10", "dcp"), ("st/m.safetensors", None)):
        reshard.convert(folder / "saved", folder / name, to=to)
    (folder / "readme").write_text("none")
    return folder


def test_other_schemes():
    refused(
        "https://bucket/c",
        StorageError,
        "reading from https:// is not supported; give a local path, or a URL that begins with gs://, s3:// or az://",
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
        f"{tmp_path} is not a checkpoint of a known format: looked for Orbax (_METADATA, _CHECKPOINT_METADATA, "
        "orbax.checkpoint)",
    )  # fmt: skip
    (tmp_path / "file").write_text("x")
    refused(
        tmp_path / "file",
        NotACheckpointError,
        "; it is a file, expected a safetensors file or the directory of a checkpoint",
    )


def test_the_folder_of_a_run_names_its_latest_step(tmp_path):
    root = tmp_path / "run"
    step = save_manager(root, {"a": np.arange(3)})
    for name in ("9", "12"):
        shutil.copytree(step, root / name)
    for name in ("13", "7.orbax-checkpoint-tmp-1"):
        (root / name).mkdir()
    refused(
        root,
        NotACheckpointError,
        f"it holds steps of a training run, so name one of them: {root}/12",
    )


def test_a_folder_of_named_checkpoints_is_none(tmp_path):
    save_pytree(tmp_path / "best", {"a": np.arange(3)})
    refused(
        tmp_path, NotACheckpointError, f"it holds checkpoints, so name one of them: {tmp_path}/best"
    )


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["something_7"], {}),
        (["small_1", "small_2", "large_2"], {}),
        (["step_1", "step_20", "best"], {1: "step_1", 20: "step_20"}),
        (["checkpoint_3", "ckpt"], {3: "checkpoint_3"}),
        (["ema_step_00000004"], {4: "ema_step_00000004"}),
        (["a_step_1", "b_step_2"], {}),
        (["1", "0012", "step_5", "something_7"], {1: "1", 12: "0012"}),
    ],
)
def test_only_folders_that_are_named_as_steps_are_steps(names, steps, tmp_path):
    made = save_pytree(tmp_path / "made", {"a": np.arange(3)})
    for name in names:
        shutil.copytree(made, tmp_path / "run" / name)
    assert reshard.steps(tmp_path / "run") == steps
    first = min(names)
    hint = f"so name one of them: {tmp_path}/run/{steps[max(steps)] if steps else first}"
    refused(tmp_path / "run", NotACheckpointError, hint)


def test_many_checkpoints_are_not_all_named(tmp_path):
    made = save_pytree(tmp_path / "made", {"a": np.arange(3)})
    for name in "abcde":
        shutil.copytree(made, tmp_path / "all" / f"{name}_1")
    hint = f"{tmp_path}/all/a_1, {tmp_path}/all/b_1, {tmp_path}/all/c_1 or another"
    refused(tmp_path / "all", NotACheckpointError, hint)


def test_a_backslash_in_a_name_of_plain_files_is_no_damage(tmp_path):
    save_pytree(tmp_path / "src", {"a\\b": np.arange(3)}, use_ocdbt=False)
    text = "the tensor 'a\\\\b' has a backslash in its name, which TensorStore reads as a slash"
    refused(tmp_path / "src", FormatError, text)
    save_pytree(tmp_path / "packed", {"a\\b": np.arange(3)})
    assert list(open_reader(str(tmp_path / "packed")).tensors) == ["a\\b"]


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


def test_the_formats_are_those_that_can_be_asked_for() -> None:
    assert format_names() == get_args(reshard.FormatName)


def test_each_format_has_options_of_targets_only() -> None:
    for known in FORMATS:
        assert known.about.options.keys() <= set(ConvertOptions.__annotations__)


def test_a_folder_is_listed_once_however_many_formats_look(tmp_path, monkeypatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "README").write_text("none")
    listed = []
    entries = LocalStore.entries
    monkeypatch.setattr(
        LocalStore, "entries", lambda self, folder: listed.append(folder) or entries(self, folder)
    )
    names = PlaceNames(locate(tmp_path))
    asked = [mark_of(known, names) for known in FORMATS if not known.about.by_prefix]
    assert asked == [None] * 6
    assert listed == [str(tmp_path)]


def test_the_table_of_marks_has_each_format_in_order() -> None:
    assert list(MARKS) == [known.about.name for known in FORMATS]
