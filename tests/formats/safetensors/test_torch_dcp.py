"""torch's distributed checkpoint in safetensors files, as four processes save it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import FormatError
from tests.formats.safetensors.described import described, stock_orbax
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dcp")


@pytest.fixture(scope="module")
def saved(torch: Oracle, folder: Path) -> dict[str, Any]:
    """Every tensor that the processes saved below ``folder``."""
    wanted, *others = torch.ask("group", action="save", folders=[str(folder)])
    assert others == [wanted] * 3
    return wanted


@pytest.mark.parametrize("form", ["single", "several"])
def test_pieces_of_four_processes_become_full_tensors(
    saved: dict[str, Any], folder: Path, form: str
) -> None:
    found = reshard.restore(folder / form)
    assert {name: described(array) for name, array in found.items()} == saved


@pytest.mark.parametrize("form", ["single", "several"])
def test_pieces_of_four_processes_become_orbax(
    saved: dict[str, Any], folder: Path, tmp_path: Path, form: str
) -> None:
    rules = [
        {"match": "^(rows|columns|both)$", "axes": ["data", "model"]},
        {"match": "^w", "axes": [None, "model"]},
    ]
    layout = {"mesh": {"data": 2, "model": 2}, "rules": rules, "unmatched": "replicate"}
    reshard.convert(folder / form, tmp_path / "orbax", to="orbax", layout=layout)
    assert stock_orbax(tmp_path / "orbax", saved) == saved


def test_pieces_are_cut_where_torch_cut_them(saved: dict[str, Any], folder: Path) -> None:
    tensors = reshard.inspect(folder / "single").tensors
    assert tensors.keys() == saved.keys()
    cuts = {name: tensor.spec.storage.cuts for name, tensor in tensors.items()}
    assert cuts["uneven.both"] == ((0, 3, 5), (0, 4, 7))
    assert cuts["uneven.twice"] == ((0, 3, 6, 9, 11), (0, 2))
    assert cuts["fewer.rows"] == ((0, 1, 2, 3), (0, 4))


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
