"""The loaders of the safetensors library, for numpy and for torch, read what is written here, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors import safe_open

import reshard
from tests.formats.safetensors.described import by_torch, described
from tests.oracles.oracle import Oracle
from tests.orbax_trees import mesh, random_array

pytestmark = pytest.mark.xdist_group("torch")

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2",
    "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "one": {"files": "one"},
    "shards": {},
    "many shards": {"file_bytes": 500},
}


@pytest.fixture(scope="module")
def tree() -> dict[str, np.ndarray]:
    """One tensor of each dtype, and some of odd shapes and names."""
    rng = np.random.default_rng(5)
    arrays = {f"of.{dtype}": random_array(rng, (8, 6), dtype) for dtype in DTYPES}
    return arrays | {
        "scalar": np.array(-3, "int32"),
        "empty": np.zeros((0, 3), "float32"),
        "odd": random_array(rng, (3,), "uint8"),
        "layers.0/a b.ü": random_array(rng, (5, 1, 7), "bfloat16"),
    }


@pytest.fixture(scope="module")
def orbax(tree: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loaders") / "orbax"
    reshard.save(path, tree)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_the_loaders_read_whole_tensors(
    torch: Oracle, tree: dict[str, np.ndarray], orbax: Path, tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "hf"
    target = folder
    if form == "one":
        folder.mkdir()
        target = folder / "model.safetensors"
    reshard.convert(orbax, target, to="safetensors", **FORMS[form])
    wanted = {name: described(array) for name, array in tree.items()}
    assert by_torch(torch, folder) == wanted
    by_numpy = {n: a for path in folder.glob("*.safetensors") for n, a in arrays_of(path).items()}
    assert {name: described(array) for name, array in by_numpy.items()} == {
        name: tensor for name, tensor in wanted.items() if "float8" not in name
    }


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """What the loader for numpy reads, which knows no float of 8 bits."""
    with safe_open(path, "numpy") as file:
        names = [name for name in file.offset_keys() if "float8" not in name]
        return {name: file.get_tensor(name) for name in names}


def test_a_rank_file_has_the_slices_of_its_device(
    torch: Oracle, tree: dict[str, np.ndarray], orbax: Path, tmp_path: Path
) -> None:
    rules = [
        {"match": "int", "axes": ["data", "model"]},
        {"match": "float", "axes": [["data", "model"], None]},
    ]
    layout = {"mesh": {"data": 4, "model": 2}, "rules": rules, "unmatched": "replicate"}
    reshard.convert(orbax, tmp_path / "ranks", to="safetensors", files="ranks", layout=layout)
    found = torch.ask("stored", folder=str(tmp_path / "ranks"))
    assert len(found) == 8
    for device, file in zip(jax.devices(), sorted(found), strict=True):
        slices = {n: a[index_of(n, a, device)] for n, a in tree.items()}
        assert found[file] == {name: described(array) for name, array in slices.items()}


def index_of(name: str, array: np.ndarray, device: jax.Device) -> Any:
    """What jax gives to a device."""
    axes: Any = ()
    if "int" in name:
        axes = ("data", "model")
    elif "float" in name:
        axes = (("data", "model"),)
    sharding = NamedSharding(mesh(), PartitionSpec(*axes))
    return sharding.devices_indices_map(array.shape)[device]
