"""The synthetic tree of the planning benchmark has the size that it names."""

from __future__ import annotations

import math

from benchmarks.conversion.plan_scale import SHAPE, SOURCE, TARGET, specs


def test_two_thousand_tensors_hold_a_trillion_parameters() -> None:
    assert 1.0e12 < 2000 * math.prod(SHAPE) < 1.01e12


def test_one_chunk_for_each_device() -> None:
    (source,), (target,) = specs(1, SOURCE), specs(1, TARGET)
    assert source.storage.parts == (128, 128)
    assert target.storage.parts == (1, 1024)
    assert source.storage.count == 16_384
    assert source.name == target.name == "layers/0000/kernel"
