"""Targets with the names of files that no conversion writes are refused, with the way from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import PlanError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    reshard.save(tmp_path / "saved", {"w": np.arange(6.0)})
    return tmp_path / "saved"


def of_torch(name: str, ending: str) -> str:
    return (
        f"the target {name!r} has the name of a file of torch.save, which is not written; name a .safetensors file, or a folder without the "
        f"ending {ending}, in the format that you choose (to)"
    )


OF_KERAS = "the target '{0}' has the name of an archive of Keras, which is not written; name a file of weights, such as '{1}', or leave the ending out (target)"
OF_ORBAX = (
    "the target '{0}' has '{1}' in its name, as a folder that Orbax has not committed, so that nothing would read it; give it another name "
    "(target)"
)
OF_TENSORFLOW = "the target '{0}' has the name of one file of a TensorFlow checkpoint; name what its files begin with, '{1}' (target)"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.pt", {}, of_torch("a.pt", ".pt")),
        ("a.pth", {"to": "dcp"}, of_torch("a.pth", ".pth")),
        ("b/a.bin", {"to": "safetensors"}, of_torch("b/a.bin", ".bin")),
        ("a.pth.tar", {}, of_torch("a.pth.tar", ".pth.tar")),
        ("a.ckpt", {}, of_torch("a.ckpt", ".ckpt")),
        ("a.ckpt", {"to": "orbax"}, of_torch("a.ckpt", ".ckpt")),
        ("m.keras", {}, OF_KERAS.format("m.keras", "m.weights.h5")),
        ("b/m.keras", {"to": "keras"}, OF_KERAS.format("b/m.keras", "b/m.weights.h5")),
        ("b/x.orbax-checkpoint-tmp-1", {}, OF_ORBAX.format("b/x.orbax-checkpoint-tmp-1", ".orbax-checkpoint-tmp")),
        ("x.partial_save", {"to": "orbax"}, OF_ORBAX.format("x.partial_save", ".partial_save")),
        ("b/ck.index", {"to": "tensorflow"}, OF_TENSORFLOW.format("b/ck.index", "b/ck")),
        ("ck.data-00000-of-00002", {"to": "tensorflow"}, OF_TENSORFLOW.format("ck.data-00000-of-00002", "ck")),
    ],
)  # fmt: skip
def test_names_of_files_that_are_not_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(saved.parent)
    with pytest.raises(PlanError) as caught:
        reshard.convert(saved, name, **options)
    assert str(caught.value).replace(f"{saved.parent}/", "") == words
    assert {path.name for path in saved.parent.iterdir()} == {"saved"}


def test_names_of_tensorflow_1(saved: Path, tmp_path: Path) -> None:
    reshard.convert(saved, tmp_path / "model.ckpt", to="tensorflow")
    reshard.convert(tmp_path / "model.ckpt", tmp_path / "again" / "model.ckpt")
    assert (tmp_path / "again" / "model.ckpt.index").is_file()
    with pytest.raises(PlanError, match="name what its files begin with"):
        reshard.convert(tmp_path / "model.ckpt", tmp_path / "again" / "more.index")


def test_a_target_of_a_keras_source_has_its_ending(saved: Path, tmp_path: Path) -> None:
    reshard.convert(saved, tmp_path / "m.weights.h5")
    with pytest.raises(PlanError, match=r"should have a name that ends in \.weights\.h5"):
        reshard.convert(tmp_path / "m.weights.h5", tmp_path / "other")


def test_sources_with_such_names_are_read(saved: Path, tmp_path: Path) -> None:
    saved.rename(tmp_path / "a.pt")
    reshard.convert(tmp_path / "a.pt", tmp_path / "made", to="orbax")
    assert (reshard.restore(tmp_path / "made")["w"] == np.arange(6.0)).all()
