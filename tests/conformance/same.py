"""Whether tensors have the same names, dtypes, shapes and bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def assert_same_arrays(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> None:
    """The same names, and under each the same bits in the same dtype and shape."""
    assert set(found) == set(expected)
    for name, array in expected.items():
        other = np.asarray(found[name])
        assert (other.dtype, other.shape) == (array.dtype, array.shape), name
        assert other.tobytes() == array.tobytes(), name
