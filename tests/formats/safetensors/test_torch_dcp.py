"""torch's distributed checkpoint in safetensors files: four processes save it and load it, on other meshes each time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.errors import FormatError
from tests.formats.safetensors.described import described, stock_orbax
from tests.formats.safetensors.from_torch import orbax_of_each
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = pytest.mark.xdist_group("torch")

FORMS = ("single", "several")
OURS = ("kept", "replicated", "straight", "whole")
LAYOUT = {
    "mesh": {"data": 2, "model": 2},
    "rules": [
        {"match": "^(rows|columns|both|complex|empty.*)$", "axes": ["data", "model"]},
        {"match": "^w", "axes": [None, "model"]},
        {"match": "^small", "axes": [["model", "data"], None]},
    ],
    "partitions": [{"match": "^uneven.columns$", "fixed_shards": 3, "axis": 1}],
    "unmatched": "replicate",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dcp")


@pytest.fixture(scope="module")
def saved(torch: Oracle, folder: Path) -> dict[str, Any]:
    """Every tensor that the processes saved below ``folder``."""
    wanted, *others = torch.ask("group", action="save", folders=[str(folder)])
    assert others == [wanted] * 3
    return wanted


@pytest.fixture(scope="module")
def orbax(saved: dict[str, Any], folder: Path) -> dict[str, Path]:  # noqa: ARG001  saves them first
    """An Orbax checkpoint of each form."""
    return orbax_of_each({form: folder / form for form in FORMS}, folder, LAYOUT)


@pytest.fixture(scope="module")
def wrong(torch: Oracle, folder: Path, orbax: dict[str, Path]) -> dict[str, set[str]]:
    """The tensors that the processes load with other bits, from each of some folders below ``folder``."""
    source = orbax["single"]
    replicated = {"mesh": "all=3", "missing_axes": "replicate"}
    reshard.convert(source, folder / "kept", to="safetensors", files="dcp")
    reshard.convert(source, folder / "replicated", to="safetensors", files="dcp", **replicated)
    reshard.convert(source, folder / "whole", to="safetensors", file_bytes="300")
    reshard.convert(folder / "several", folder / "straight", files="dcp", layout=LAYOUT)
    shutil.copytree(folder / "kept", folder / "damaged")
    damaged = max((folder / "damaged").glob("*.safetensors"))
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    folders = [str(folder / name) for name in ("single", "damaged", *OURS)]
    found = torch.ask("group", action="load", folders=folders)
    return {Path(f).name: {name for rank in found for name in rank[f]} for f in folders}


@pytest.mark.parametrize("form", FORMS)
def test_pieces_of_four_processes_become_full_tensors(
    saved: dict[str, Any], folder: Path, form: str
) -> None:
    found = reshard.restore(folder / form)
    assert {name: described(array) for name, array in found.items()} == saved


@pytest.mark.parametrize("form", FORMS)
def test_pieces_of_four_processes_become_orbax(
    saved: dict[str, Any], orbax: dict[str, Path], form: str
) -> None:
    assert stock_orbax(orbax[form], saved) == saved


def test_pieces_are_cut_where_torch_cut_them(saved: dict[str, Any], folder: Path) -> None:
    tensors = reshard.inspect(folder / "single").tensors
    assert tensors.keys() == saved.keys()
    cuts = {name: tensor.spec.storage.cuts for name, tensor in tensors.items()}
    assert cuts["uneven.both"] == ((0, 3, 5), (0, 4, 7))
    assert cuts["uneven.twice"] == ((0, 3, 6, 9, 11), (0, 2))
    assert cuts["fewer.rows"] == ((0, 1, 2, 3), (0, 4))


@pytest.mark.parametrize("source", OURS)
def test_torch_loads_our_files_onto_other_meshes(
    wrong: dict[str, set[str]], folder: Path, source: str
) -> None:
    assert wrong[source] == set()
    assert reshard.verify(folder / "single", folder / source).differences == 0


def test_the_comparison_finds_a_flipped_bit(wrong: dict[str, set[str]]) -> None:
    assert wrong["single"] == set()
    assert len(wrong["damaged"]) == 1


def test_files_with_other_values_than_tensors_are_refused(
    saved: dict[str, Any], folder: Path
) -> None:
    assert "rows" in saved
    with pytest.raises(FormatError) as error:
        reshard.inspect(folder / "settings")
    path, said = str(error.value).split(" ", 1)
    assert Path(path).parent == folder / "settings"
    assert said == (
        "begins with a zip archive of torch.save; expected a safetensors file. Where a state has values that are not "
        "tensors, such as an optimizer's settings, torch's distributed checkpoint writes them into its safetensors files, "
        "which nothing can read then; save the tensors alone"
    )


def test_a_dtype_that_torch_does_not_load_is_warned_of(torch: Oracle, tmp_path: Path) -> None:
    tree = {"w": np.ones(4, "float32"), "scales": np.ones((4, 2), ml_dtypes.float8_e8m0fnu)}
    reshard.save(tmp_path / "orbax", tree)
    options: Any = {"to": "safetensors", "files": "dcp", "mesh": "a=2", "missing_axes": "replicate"}
    report = reshard.convert(tmp_path / "orbax", tmp_path / "dcp", **options)
    assert report.warnings == (
        "'scales' is float8_e8m0fnu, and torch's HuggingFaceStorageReader loads no tensor of a folder that holds this "
        "dtype; drop it or cast it, or read the files with safetensors.torch",
    )
    with pytest.raises(RefusedError, match="F8_E8M0"):
        torch.ask("dcp_sizes", folder=str(tmp_path / "dcp"))
    report = reshard.convert(tmp_path / "orbax", tmp_path / "dropped", drop=["scales"], **options)
    assert not report.warnings
    assert torch.ask("dcp_sizes", folder=str(tmp_path / "dropped")) == {"w": [4]}
