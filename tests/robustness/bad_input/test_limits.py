"""Memory, workers, chunks and forms that make no sense."""

from __future__ import annotations

import numpy as np
import pytest

from reshard.errors import (
    MemoryBudgetError,
    PlanError,
)
from tests.formats.orbax.by_hand import write_item, zarr2
from tests.robustness.bad_input.checking import (
    converts,
    edit,
    refused,
    refused_by_command,
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_memory": 0}, "max_memory is 0; expected a whole number of at least 1 (bytes, such as 512MiB)"),
        ({"max_memory": -5}, "max_memory is -5; expected a whole number of at least 1"),
        ({"max_memory": 1.5}, "max_memory is 1.5; expected a whole number of at least 1"),
        ({"max_memory": "much"}, "max_memory: 'much' is not a size in bytes; expected a number with a unit"),
        ({"max_memory": "0"}, "max_memory is 0; expected a whole number of at least 1"),
        ({"max_memory": "-1GiB"}, "max_memory: '-1GiB' is not a size in bytes"),
        ({"workers": 0}, "workers is 0; expected a whole number of at least 1 (tasks at once, such as 2)"),
        ({"workers": -1}, "workers is -1; expected a whole number of at least 1"),
        ({"workers": True}, "workers is True; expected a whole number"),
        ({"chunk_bytes": 0}, "chunk_bytes is 0; expected a whole number of at least 1 (bytes, such as 256MiB)"),
        ({"chunk_bytes": "big"}, "chunk_bytes: 'big' is not a size in bytes"),
        ({"compression": "lzma"}, "compression 'lzma' is not known; expected none, zstd[:level up to 22], gzip"),
        ({"compression": "zstd:x"}, "compression 'zstd:x': the level must be a whole number"),
        ({"compression": "zstd:99"}, "compression 'zstd:99' is not known"),
        ({"compression": None}, "compression None is not known"),
        ({"style": "v2"}, "style is 'v2'; expected one of None, 'v0', 'v1'"),
        ({"executor": "threads"}, "executor is 'threads'; expected a concurrent.futures.Executor, or None for threads"),
        ({"check": "maybe"}, "check is 'maybe'; expected one of 'written', 'readback'"),
    ],
)  # fmt: skip
def test_limits_and_forms_that_make_no_sense(options, text, source, tmp_path):
    refused(source, tmp_path / "dst", PlanError, text, **options)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--compression", "lzma"], "compression 'lzma' is not known"),
    ],
)
def test_limits_of_the_command(args, text, source, tmp_path, capsys):
    refused_by_command(capsys, source, tmp_path / "dst", text, args=args, code=2)


@pytest.mark.parametrize("kind", ["plain", "zstd", "ocdbt"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("workers", [1, 4])
def test_memory_too_small_names_the_smallest_that_works(
    kind, compression, workers, saved, tmp_path, capsys
):
    options = {"compression": compression, "workers": workers, "mesh": "data=2,model=4"}
    error = refused(
        saved[kind], tmp_path / "dst", MemoryBudgetError, "needs at least", "but 0.0009766 MiB are allowed",
        max_memory=1 << 10, **options,
    )  # fmt: skip
    assert isinstance(error, MemoryBudgetError)
    smallest = error.smallest_bytes
    assert f"allow max_memory of {smallest >> 20}MiB" in str(error)
    args = ["--max-memory", "1KiB", "--compression", compression]
    text = f"allow max_memory of {smallest >> 20}MiB"
    refused_by_command(capsys, saved[kind], tmp_path / "dst", text, args=args)
    converts(saved[kind], tmp_path / "dst", max_memory=smallest, **options)


def test_absurdly_small_chunks(tmp_path, capsys):
    write_item(tmp_path / "src", {"big": (np.zeros(2, np.int8), zarr2([2]))})
    edit("big/.zarray", '"chunks":[2]', '"chunks":[1073741824]')(tmp_path / "src")
    edit("big/.zarray", '"shape":[2]', '"shape":[1073741824]')(tmp_path / "src")
    text = "'big' of shape [1073741824] would be written in 1073741824 chunks"
    refused(tmp_path / "src", tmp_path / "dst", PlanError, text, "(chunk_bytes)", chunk_bytes=1)
    refused_by_command(capsys, tmp_path / "src", tmp_path / "dst", text, args=["--chunk-bytes", 1])
