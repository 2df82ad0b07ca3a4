"""What hashing keeps in memory counts against the budget."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.engine import read_boxes
from reshard.engine.read_boxes import BoxBatch
from reshard.formats.contents import Encoding, StoredTensor
from reshard.geometry.grid import Box, Grid
from reshard.identity.read_leaves import (
    check_leaves_fit,
    hashing_memory,
    kept_hash_bytes,
    leaf_blocks,
    leaf_tree_of,
)
from reshard.identity.slice_proof import needs_elements
from reshard.layout.tensor_spec import TensorSpec

MIB = 1 << 20


def stored(name: str, *shape: int) -> StoredTensor:
    spec = TensorSpec(name, shape, "uint8", Grid.whole(shape))
    return StoredTensor(spec, Encoding(), b"\0", may_be_missing=False)


def test_hashes_of_leaves_count() -> None:
    """1 TiB has 2**24 leaves, whose hashes take 512 MiB, and 2**20 kept nodes, which take 32 MiB; its cuts take 1 MiB."""
    tensor = stored("w", 1 << 20, 1 << 20)
    with pytest.raises(
        reshard.MemoryBudgetError,
        match="to hash 'w' takes 552 MiB, but max_memory is 512 MiB; allow 552MiB",
    ) as caught:
        check_leaves_fit([tensor], 512 * MIB)
    assert caught.value.smallest_bytes is not None
    check_leaves_fit([tensor], caught.value.smallest_bytes)
    assert kept_hash_bytes([tensor]) == 32 * MIB
    block = next(leaf_blocks([tensor], 700 * MIB, 1))
    assert block.memory_bytes - block.plan.memory_bytes > 512 * MIB


def test_a_tree_of_too_many_cuts_is_refused_before_it_is_made() -> None:
    """4 TiB in one dimension have 2**26 leaves and as many cuts; a sparse file of this size costs its writer nothing."""
    tensor = stored("w", 1 << 42)
    tracemalloc.start()
    try:
        for check in (
            lambda: check_leaves_fit([tensor], 256 * MIB),
            lambda: hashing_memory([tensor], 256 * MIB, 4),
            lambda: needs_elements(tensor, Box((0,), (1 << 42,)), 256 * MIB),
        ):
            with pytest.raises(
                reshard.MemoryBudgetError,
                match=r"to hash 'w' takes 20\.[01] GiB, but max_memory is 256 MiB; allow 20(609|481)MiB",
            ):
                check()
        assert kept_hash_bytes([tensor]) == 128 * MIB
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_the_cuts_of_a_tree_count() -> None:
    """1 GiB in one dimension has 2**14 leaves and as many cuts, whose memory was measured: 120 bytes each."""
    block = next(leaf_blocks([stored("w", 1 << 30)], 1 << 30, 1))
    assert block.memory_bytes - block.plan.memory_bytes > (32 + 120) << 14


def test_trees_of_many_cuts_are_not_kept() -> None:
    """Of 8 tensors with 2**15 cuts, which take 1.3 MiB each, one tree is in memory at a time."""
    tensors = [stored(f"w{n}", (1 << 31) - n) for n in range(8)]
    tracemalloc.start()
    try:
        check_leaves_fit(tensors, 256 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    small = stored("w", 1 << 20)
    assert leaf_tree_of(small) is leaf_tree_of(small)


def test_hashes_of_tensors_in_flight_are_at_most_5_of_10_000() -> None:
    for tensor in (stored("w", 4096, 14336), stored("v", 1 << 30)):
        leaves = next(leaf_blocks([tensor], 1 << 30, 1)).of.leaves
        assert 32 * leaves <= tensor.spec.nbytes * 0.0005 * 2  # tiles have 32 to 64 KiB


@pytest.mark.parametrize("workers", [1, 4])
def test_the_plan_says_what_hashing_may_take(
    workers: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs: list[int] = []
    original = read_boxes._memory_of

    def noted(batch: BoxBatch[Any]) -> int:
        needs.append(original(batch))
        return needs[-1]

    monkeypatch.setattr(read_boxes, "_memory_of", noted)
    reshard.identify(checkpoint, workers=workers)
    tensors: list[Any] = [stored("embed", 301, 257 * 4), stored("w", 4, 130, 70 * 4)]
    assert 0 < max(needs) <= hashing_memory(tensors, 64 * MIB, workers) <= 64 * MIB
