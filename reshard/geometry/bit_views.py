"""Views of elements as plain bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def opaque_dtype(itemsize: int) -> np.dtype[Any]:
    """A dtype of that size whose copies are plain memory copies that keep every bit."""
    import numpy as np

    return np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[itemsize])
