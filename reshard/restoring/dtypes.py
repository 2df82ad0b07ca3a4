"""The dtype in which a tensor is restored: the stored one, unless the change loses nothing or was asked for.

A target that says another dtype gets it where every value stays what it is (bfloat16 → float32, int8
→ int32). Whatever can lose something, and every change of kind (int → float), needs a ``cast`` rule.
"""

from __future__ import annotations

from typing import Any

from reshard.geometry.dtypes import numpy_dtype
from reshard.layout.cast_rule import kind_of


def is_lossless(source: str, target: str) -> bool:
    """Whether every value of ``source`` is one of ``target``, of the same kind.

    >>> is_lossless("bfloat16", "float32"), is_lossless("int8", "float32")
    (True, False)
    """
    if source == target:
        return True
    if kind_of(source) != kind_of(target):
        return False
    if kind_of(source) == "int":
        return _range_within(source, target)
    if kind_of(source) == "complex":
        return (source, target) == ("complex64", "complex128")
    # Every floating type that exists is narrower than float32 in range and precision, or one of these.
    return target == "float64" or (target == "float32" and source != "float64")


def _range_within(source: str, target: str) -> bool:
    import ml_dtypes

    info: Any = ml_dtypes.iinfo  # not annotated
    inner, outer = info(numpy_dtype(source)), info(numpy_dtype(target))
    return bool(outer.min <= inner.min and inner.max <= outer.max)
