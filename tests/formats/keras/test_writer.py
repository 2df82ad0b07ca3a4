"""Weights that are written for Keras, referred by it: values, not only that it loads, since it ignores names that it does not know."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.errors import FormatError, PlanError, TargetExistsError
from reshard.formats.keras import write_file
from reshard.formats.keras.datasets import Dataset
from reshard.formats.keras.write_file import hdf5_skeleton
from tests.conformance.weights import read_weights
from tests.formats.keras.models import nested_model, randomized, values_of


@pytest.mark.parametrize("through", ["orbax", "safetensors", "tensorflow", "keras"])
def test_a_model_with_its_optimizer_goes_on(through: str, tmp_path: Path) -> None:
    model = randomized(nested_model(), 1)
    model.save_weights(tmp_path / "model.weights.h5")
    between = tmp_path / ("between.weights.h5" if through == "keras" else "between")
    reshard.convert(tmp_path / "model.weights.h5", between, to=through)
    reshard.convert(between, tmp_path / "made.weights.h5")
    other = randomized(nested_model(), 2)
    assert values_of(other) != values_of(model)
    other.load_weights(tmp_path / "made.weights.h5")
    assert values_of(other) == values_of(model)


def test_what_keras_will_not_find_is_told(tmp_path: Path) -> None:
    reshard.save(tmp_path / "saved", {"layers": {"dense": {"vars": [np.zeros(3)]}}, "step": np.array(1)})  # fmt: skip
    report = reshard.convert(tmp_path / "saved", tmp_path / "made.weights.h5")
    (warning,) = (one for one in report.warnings if "load_weights" in one)
    assert warning.startswith("'step': load_weights of Keras finds variables by names such as")
    found = reshard.restore(tmp_path / "made.weights.h5")
    assert isinstance(found["layers"]["dense"]["vars"], list)  # as the record says


def test_a_file_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    tree = {"b": {"vars": [np.arange(6.0), np.float32(2)]}, "a": np.zeros((0, 3)), "c": np.ones(5, bool)}  # fmt: skip
    reshard.save(tmp_path / "saved", tree)
    made = [tmp_path / name / "x.weights.h5" for name in ("one", "two")]
    for file in made:
        file.parent.mkdir()
        reshard.convert(tmp_path / "saved", file)
    assert made[0].read_bytes() == made[1].read_bytes()


def test_metadata_is_in_front_and_any_size_takes_little_memory() -> None:
    datasets = [
        Dataset("a/vars/0", "float32", (1 << 40, 4), None),
        Dataset("a/vars/1", "bfloat16", (), None),
        Dataset("a/vars/2", "float64", (0, 3), None),
        Dataset("b", "bool", (7,), None),
    ]
    made = hdf5_skeleton(datasets)
    assert len(made.head) < 20_000
    first = len(made.head)
    assert made.offsets == {
        "a/vars/0": first,
        "a/vars/1": first + (1 << 44),
        "b": first + (1 << 44) + 2,
    }
    assert made.nbytes == first + (1 << 44) + 9
    assert made == hdf5_skeleton(datasets)


def test_elements_that_hdf5_places_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Dataset("a", "int8", (3,), None), Dataset("b", "int8", (3,), None)]
    first = len(hdf5_skeleton(made).head)
    monkeypatch.setattr(write_file._Metadata, "ends_at", lambda _: first + 1)
    with pytest.raises(FormatError) as caught:
        hdf5_skeleton(made)
    assert str(caught.value) == (
        f"HDF5 places datasets in another way than is known, at byte {first + 1:,}; this is a defect of the program, please report it"
    )


def test_many_tensors(tmp_path: Path) -> None:
    tree = {f"layer_{n}": {"vars": {"0": np.full(n % 5, n, np.int32)}} for n in range(400)}
    reshard.save(tmp_path / "saved", tree)
    reshard.convert(tmp_path / "saved", tmp_path / "made.weights.h5", check="readback")
    found = read_weights(tmp_path / "made.weights.h5")
    assert all(found[f"layer_{n}/vars/0"].tobytes() == np.full(n % 5, n, np.int32).tobytes() for n in range(400))  # fmt: skip


NO_PATH = "is no path in an HDF5 file: between slashes there must be something other than '.'; rename it (rename)"


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"slices.json": np.zeros(2)}, "a tensor has the name 'slices.json', which the record has in Keras files; rename it (rename)"),
        ({"a/.": np.zeros(2)}, f"the name 'a/.' {NO_PATH}"),
        ({"a/b//c": np.zeros(2)}, f"the name 'a/b//c' {NO_PATH}"),
        ({"a": np.zeros(2), "a/b": np.zeros(2)}, "'a' and 'a/b' cannot both be tensors of an HDF5 file, in which 'a' would be a group; rename one of them (rename)"),
    ],
)  # fmt: skip
def test_names_that_it_cannot_have_are_refused(
    tree: dict[str, np.ndarray], said: str, tmp_path: Path
) -> None:
    save_file(tree, tmp_path / "saved.safetensors")
    with pytest.raises(PlanError) as caught:
        reshard.convert(tmp_path / "saved.safetensors", tmp_path / "made.weights.h5")
    assert str(caught.value) == said
    assert not list(tmp_path.glob("*made*"))


def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    save_file({"w": np.zeros(2)}, tmp_path / "saved.safetensors")
    with pytest.raises(
        PlanError, match="the name has a lone surrogate, which Keras files cannot hold; rename it"
    ):
        reshard.convert(
            tmp_path / "saved.safetensors", tmp_path / "made.weights.h5", rename=[("w", "\ud800")]
        )


def test_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    reshard.save(tmp_path / "saved", {"w": np.zeros(3), "none": None})
    with pytest.raises(FormatError, match=r"Keras files hold tensors only, and cannot hold 'none'"):
        reshard.convert(tmp_path / "saved", tmp_path / "made.weights.h5")
    with pytest.raises(PlanError, match=r"should have a name that ends in \.weights\.h5"):
        reshard.convert(tmp_path / "saved", tmp_path / "made", to="keras", drop=["none"])


def test_only_files_of_weights_are_replaced(tmp_path: Path) -> None:
    reshard.save(tmp_path / "saved", {"w": np.zeros(3)})
    made = tmp_path / "made.weights.h5"
    made.write_bytes(b"something else")
    with pytest.raises(TargetExistsError, match="is a file that is not a checkpoint"):
        reshard.convert(tmp_path / "saved", made, overwrite=True)
    with h5py.File(made, "w") as file:
        file["v"] = np.ones(2)
    with pytest.raises(TargetExistsError, match="exists already"):
        reshard.convert(tmp_path / "saved", made)
    reshard.convert(tmp_path / "saved", made, overwrite=True)
    assert list(read_weights(made)) == ["w"]
