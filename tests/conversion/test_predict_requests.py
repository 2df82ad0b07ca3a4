"""The facts of a source tensor are found by looking at some of its chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.conversion.predict_requests import SAMPLES, source_tensor
from reshard.formats.base import Reader
from reshard.formats.contents import Extent
from reshard.formats.missing_chunks import read_as
from reshard.formats.registry import open_reader
from reshard.geometry.grid import Index
from reshard.storage.requests import Requests
from tests.orbax_trees import save_pytree

MANY = 10 * SAMPLES


@pytest.fixture
def source(tmp_path: Path) -> Path:
    saved = save_pytree(tmp_path / "saved", {"w": np.arange(MANY * 10, dtype="int32")})
    reshard.convert(saved, tmp_path / "source", workers=1, chunk_bytes=40)
    return tmp_path / "source"


def test_tensors_of_many_chunks_are_estimated_from_some(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_reader(str(source))
    looked: list[Index] = []
    locate = type(reader).locate

    def noted(self: Reader, name: str, index: Index) -> Extent | None:
        looked.append(index)
        return locate(self, name, index)

    monkeypatch.setattr(type(reader), "locate", noted)
    found = source_tensor(reader, "w", 30)
    assert len(looked) == SAMPLES
    nbytes = sum(path.stat().st_size for path in (source / "w").rglob("*") if path.name.isdigit())
    assert nbytes == MANY * 44  # with a checksum
    assert found.chunks.count == MANY
    assert (found.chunks.once.get, found.chunks.once.received_bytes) == (2 * MANY, nbytes)
    assert (found.chunks.share, found.chunks.mean_bytes) == (1, 44)
    assert found.example is not None


def test_chunks_that_are_missing_take_nothing(source: Path) -> None:
    for path in (source / "w").rglob("*"):
        if path.name.isdigit() and int(path.name) >= MANY // 2:
            path.unlink()
    found = source_tensor(read_as(open_reader(str(source)), "allow"), "w", 1000)
    assert (found.chunks.share, found.chunks.mean_bytes) == (0.5, 44)
    assert found.chunks.once == Requests(get=MANY // 2, received_bytes=MANY // 2 * 44)
