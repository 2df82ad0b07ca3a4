"""The report of ``diff``: whether each tensor and leaf differs, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from reshard.verification.elements import ComparedAs

DiffStatus = Literal["equal", "different", "only in A", "only in B"]


class TensorDiff(Struct, frozen=True):
    """How a tensor of A differs from that of B.

    ``elements`` and all that follows is None where the two were not compared: one of them is missing,
    their shapes differ, or only one of them is a PRNG key.

    Attributes:
        status: "equal" where names, shapes, dtypes and all bits are.
        shape_a, shape_b, dtype_a, dtype_b: None where the tensor is missing.
        detail: what differs besides elements, in words.
        compared_as: "bits" of PRNG keys, "integers" (of any size, exact), "float64" or "complex128"; it
            holds the values of both dtypes exactly.
        elements: how many differ: in their bits where the dtypes are the same, else in their values.
        nonfinite: how many of these are NaN or infinite in A or in B.
        nans_a, nans_b, infinities_a, infinities_b: how many elements are NaN, or infinite, differing or not.
        largest: the largest ``|a - b|`` where a and b are finite; None where no finite elements differ, and
            of keys.
        index: where that is, the first in row-major order; where there is none, of the first element that differs.
        relative: ``‖a - b‖₂ / ‖a‖₂`` over the elements that are finite in A and in B; 0.0 where nothing
            differs there, inf where only A is all zeros; None of keys.
    """

    name: str
    status: DiffStatus
    shape_a: tuple[int, ...] | None = None
    shape_b: tuple[int, ...] | None = None
    dtype_a: str | None = None
    dtype_b: str | None = None
    detail: str = ""
    compared_as: ComparedAs | None = None
    elements: int | None = None
    nonfinite: int | None = None
    nans_a: int | None = None
    nans_b: int | None = None
    infinities_a: int | None = None
    infinities_b: int | None = None
    largest: int | float | None = None
    index: tuple[int, ...] | None = None
    relative: float | None = None

    @property
    def is_difference(self) -> bool:
        """Whether the tensor differs, or lies on one side only."""
        return self.status != "equal"

    def __repr__(self) -> str:
        if self.elements is None or not self.is_difference:
            return f"TensorDiff({self.name!r}: {self.detail or self.status})"
        return (
            f"TensorDiff({self.name!r}: {self.elements:,} elements differ, largest {self.largest}, "
            f"relative {self.relative})"
        )


class LeafDiff(Struct, frozen=True):
    """How a leaf that is no tensor, in one checkpoint at least, differs.

    Attributes:
        a, b: what it is, such as ``"'adam'"`` of a string, ``"None"``, ``"Dict"``, ``"float32 of shape
            [3]"``; None where it is missing.
    """

    name: str
    status: DiffStatus
    a: str | None
    b: str | None

    @property
    def is_difference(self) -> bool:
        """Whether the leaf differs, or lies on one side only."""
        return self.status != "equal"


class DiffReport(Struct, frozen=True):
    """How two checkpoints differ.

    Attributes:
        tensors: by name, those of A in its order, then what only B has.
        leaves: the same of strings, None, empty containers, and of what is a tensor in one of them only.
        seconds: wall time.
    """

    a: str
    b: str
    tensors: Mapping[str, TensorDiff]
    leaves: Mapping[str, LeafDiff]
    seconds: float

    @property
    def differences(self) -> int:
        """Tensors and other leaves that differ, or are in one of the checkpoints only."""
        tensors = sum(t.is_difference for t in self.tensors.values())
        return tensors + sum(x.is_difference for x in self.leaves.values())

    def __repr__(self) -> str:
        tensors = sum(t.is_difference for t in self.tensors.values())
        leaves = sum(x.is_difference for x in self.leaves.values())
        return (
            f"DiffReport({self.a!r}, {self.b!r}: {tensors:,} of {len(self.tensors):,} tensors and "
            f"{leaves:,} of {len(self.leaves):,} other leaves differ)"
        )
