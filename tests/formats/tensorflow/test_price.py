"""The memory of slices before a checkpoint is opened: near what they take."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import reshard
from reshard.formats.registry import find_checkpoint
from reshard.formats.tensorflow.index import BundleEntry, entry_bytes, header_bytes, slice_key
from reshard.formats.tensorflow.table import table_bytes

UINT8 = 4


def _in_slices(prefix: Path, count: int, rank: int) -> Path:
    """One tensor in so many slices along its first dimension, which all have the same bytes."""
    rest = (2,) * (rank - 1)
    extents = [((n, 1), *((0, 2) for _ in rest)) for n in range(count)]
    one = entry_bytes(BundleEntry(UINT8, (1, *rest), nbytes=2 ** len(rest)))
    entries = {slice_key(b"w", each): one for each in extents}
    entries |= {b"": header_bytes(1), b"w": entry_bytes(BundleEntry(UINT8, (count, *rest), slices=tuple(extents)))}  # fmt: skip
    prefix.with_name(f"{prefix.name}.index").write_bytes(table_bytes(sorted(entries.items())))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(bytes(2 ** len(rest)))
    return prefix


@pytest.mark.parametrize("rank", [1, 2, 8])
def test_slices_are_priced_by_what_they_take(tmp_path: Path, rank: int) -> None:
    found = find_checkpoint(str(_in_slices(tmp_path / "c", 3000, rank)))
    _, nbytes = found.price()
    tracemalloc.start()
    try:
        reader = found.open()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(reader.tensors) == 1
    assert peak < nbytes < 1.3 * peak


def test_a_tensor_in_many_slices_is_converted_in_the_usual_memory(tmp_path: Path) -> None:
    prefix = _in_slices(tmp_path / "c", 20_000, 1)
    reshard.convert(prefix, tmp_path / "made", to="safetensors", max_memory="64MiB")
    assert reshard.inspect(tmp_path / "made").tensors["w"].spec.shape == (20_000,)
