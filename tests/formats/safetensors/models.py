"""Folders with the files of a model, and what every function says of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import reshard
from reshard.errors import NotACheckpointError
from tests.formats.safetensors.build import file_of

A, B, C = (np.arange(2, dtype="float32") + start for start in (0, 10, 20))
SHARD = "model-0000{}-of-0000{}.safetensors".format
INDEX = "model.safetensors.index.json"


def folder_of(folder: Path, **files: Mapping[str, np.ndarray]) -> Path:
    """A folder of files; ``__`` in a keyword stands for a dot, ``_`` for a dash."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        file_name = name.replace("__", ".").replace("_", "-") + ".safetensors"
        file_of(folder, save(dict(tensors)), file_name)
    return folder


def index_of(folder: Path, weight_map: Mapping[str, str], name: str = INDEX) -> Path:
    path = folder / name
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def refused(path: Path, kind: type[Exception] = NotACheckpointError) -> str:
    """The text of the error that every function gives."""
    said = []
    for ask in (reshard.inspect, reshard.restore, reshard.verify):
        with pytest.raises(kind) as error:
            ask(path)
        said.append(str(error.value))
    for ask in (reshard.plan, reshard.convert):
        with pytest.raises(kind) as error:
            ask(path, path.parent / "out")
        said.append(str(error.value))
    assert len(set(said)) == 1
    assert not (path.parent / "out").exists()
    return said[0]


def equal(found: Mapping[str, Any], wanted: Mapping[str, np.ndarray]) -> None:
    assert {name: list(array) for name, array in found.items()} == {
        name: list(array) for name, array in wanted.items()
    }


def told(path: Path, **more: Any) -> list[str]:
    """The warnings of a checkpoint, which every function gives, without that of missing checksums."""

    def own(warnings: Any) -> list[str]:
        return [
            w for w in warnings if "carries no checksum" not in w and "carries a checksum" not in w
        ]

    out = path.parent / "told"
    wanted = own(reshard.inspect(path, **more).warnings)
    assert own(reshard.plan(path, out, to="orbax", overwrite=True, **more).warnings) == wanted
    assert own(reshard.convert(path, out, to="orbax", overwrite=True, **more).warnings) == wanted
    assert own(reshard.verify(path, out, **more).warnings) == wanted
    assert list(reshard.diff(path, out, **more).warnings) == wanted
    reports: list[reshard.RestoreReport] = []
    reshard.restore(path, report=reports.append, **more)
    assert own(reports[0].warnings) == wanted
    return wanted
