"""The formula of the requests that read a tensor, by numbers that are easy to add up by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import reshard
from reshard.conversion.most_requests import reads
from reshard.formats.registry import open_reader
from reshard.geometry.grid import Grid
from reshard.planning.plans import MultiPlan
from reshard.storage.base import Requests
from tests.orbax_trees import save_pytree

WHOLE = Grid.whole((256, 256))
QUARTERS = Grid.regular((256, 256), (256, 64))
KIB = 1 << 10
CODED = 128


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 rows of 1 KiB."""
    return save_pytree(
        tmp_path_factory.mktemp("saved") / "a", {"w": np.zeros((256, 256), "float32")}
    )


def requests_of(source: Path, units: Grid, range_bytes: int, **options: Any) -> Requests:
    """The requests that read the one tensor of a source in these units."""
    plan = MultiPlan.alone(reshard.plan(source, workers=1, **options).plan)
    read = replace(plan.reads[0], units=units)
    return reads(open_reader(str(source)), read, plan.fill(read.fills[0]), 0, range_bytes)


def test_a_compressed_chunk_takes_a_request_for_each_range(saved: Path, tmp_path: Path) -> None:
    """Each unit reads all of every chunk that it touches."""
    source = tmp_path / "zstd"
    reshard.convert(saved, source, compression="zstd", chunk_bytes=64 * KIB)
    coded = 64 * KIB + 64 * KIB // CODED + CODED
    # Behind several ranges the checksum may be a request of its own.
    found = requests_of(source, WHOLE, 30 * KIB, chunk_bytes=128 * KIB)
    assert found == Requests(get=4 * (2 + 1 + 1), received_bytes=4 * coded)
    found = requests_of(source, QUARTERS, 100 * KIB, chunk_bytes=128 * KIB)
    assert found == Requests(get=4 * 4, received_bytes=4 * 4 * coded)


def test_a_raw_chunk_that_several_units_share_takes_a_request_for_each_run(
    saved: Path, tmp_path: Path
) -> None:
    source = tmp_path / "raw"
    reshard.convert(saved, source, chunk_bytes=128 * KIB)
    options = {"compression": "zstd", "chunk_bytes": 256 * KIB}
    # Units of columns read all rows of both chunks; the first band is apart.
    assert requests_of(source, QUARTERS, 64 << 20, **options).get == 4 * 2 * 1
    assert requests_of(source, WHOLE, 64 << 20, **options).get == 2
