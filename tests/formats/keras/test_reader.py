"""Weights that Keras 3 saved, read without Keras: names, dtypes and optimizers, on a disk and from a bucket."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import obstore
import pytest

import reshard
from reshard.errors import MissingPackageError
from tests.conformance.same import assert_same_arrays
from tests.conformance.weights import read_weights
from tests.emulators.buckets import Bucket
from tests.formats.keras.models import nested_model, randomized


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keras") / "model.weights.h5"
    randomized(nested_model(), 1).save_weights(file)
    return file


def test_names_are_the_paths_in_the_file(saved: Path) -> None:
    found = reshard.inspect(saved)
    assert {"layers/block/up/vars/0", "layers/block/more/dense/vars/1"} <= set(found.tensors)
    assert {"layers/sequential/layers/dense/vars/0", "optimizer/vars/2"} <= set(found.tensors)
    assert found.tensors["layers/sequential/layers/dense/vars/0"].spec.dtype == "bfloat16"
    assert found.tensors["optimizer/vars/0"].spec.shape == ()
    assert found.format == "keras"


@pytest.mark.parametrize("to", ["orbax", "safetensors", "tensorflow", "keras"])
def test_every_value_is_converted(to: str, saved: Path, tmp_path: Path) -> None:
    target = tmp_path / ("made.weights.h5" if to == "keras" else "made")
    reshard.convert(saved, target, to=to)
    assert reshard.verify(saved, target).differences == 0
    flat = dict(reshard.inspect(target).tensors)
    assert set(flat) == set(read_weights(saved))
    reshard.convert(target, tmp_path / "again.weights.h5")
    assert_same_arrays(read_weights(tmp_path / "again.weights.h5"), read_weights(saved))


def test_a_model_in_attributes_is_named_as_left_out(tmp_path: Path) -> None:
    """As Keras 2 keeps it, in attributes of the file."""
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file["model_weights/dense/kernel:0"] = np.arange(6.0).reshape(2, 3)
        for name in ("backend", "keras_version", "model_config", "training_config"):
            file.attrs[name] = "{}"
    report = reshard.convert(tmp_path / "model.h5", tmp_path / "made.weights.h5")
    assert report.warnings[0] == (
        f"the attributes 'backend', 'keras_version', 'model_config' and 1 more of {str(tmp_path / 'model.h5')!r} are left out, since only "
        "arrays are read; where they are a model, its own program loads it"
    )
    again = reshard.convert(tmp_path / "made.weights.h5", tmp_path / "again.weights.h5")
    assert not any("attributes" in text for text in again.warnings)


def test_elements_are_read_from_a_bucket(saved: Path, tmp_path: Path, s3_bucket: Bucket) -> None:
    content = saved.read_bytes()
    obstore.put(s3_bucket.store(), "run/model.weights.h5", content, use_multipart=False)
    source = f"{s3_bucket.url}/run/model.weights.h5"
    reshard.convert(source, tmp_path / "made.weights.h5")
    assert_same_arrays(read_weights(tmp_path / "made.weights.h5"), read_weights(saved))


@pytest.mark.parametrize("options", [{}, {"libver": "latest"}, {"userblock_size": 512}])
def test_other_files_of_contiguous_arrays_are_read(
    options: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "other.weights.h5"
    arrays = {
        "a/b": np.arange(12.0).reshape(3, 4),
        "empty": np.zeros((0, 4), np.int16),
        "flags": np.array([True, False]),
        "number": np.array(3, np.uint64),
        "wave": np.array([1 + 2j, 3], np.complex64),
    }
    with h5py.File(file, "w", **options) as made:
        for name, array in arrays.items():
            made[name] = array
        made.create_group("nothing/in/it")
    assert_same_arrays(read_weights(file), arrays)
    reshard.convert(file, tmp_path / "made", to="orbax")
    found = reshard.restore(tmp_path / "made")
    branch = found.pop("a")
    assert_same_arrays({**found, "a/b": branch["b"]}, arrays)


def test_without_h5py_the_extra_is_named(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingPackageError, match=r"need h5py, .*pip install '\.\[keras\]'"):
        reshard.inspect(saved)
    reshard.save(tmp_path / "saved", {"w": np.zeros(3)})
    with pytest.raises(MissingPackageError, match=r"pip install '\.\[keras\]'"):
        reshard.convert(tmp_path / "saved", tmp_path / "made.weights.h5")
    assert not list(tmp_path.glob("*made*"))


def test_one_of_several_files_is_told(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "model_00001.weights.h5").write_bytes(saved.read_bytes())
    warnings = reshard.inspect(tmp_path / "model_00001.weights.h5").warnings
    assert any("one of several files of a model" in warning for warning in warnings)


def test_a_folder_says_which_file_to_name(saved: Path) -> None:
    with pytest.raises(reshard.NotACheckpointError, match=rf"so name that: {saved}"):
        reshard.inspect(saved.parent)
