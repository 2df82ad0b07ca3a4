"""The report of ``diff``: whether each tensor and leaf differs, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from reshard.verification.elements import ComparedAs

DiffStatus = Literal["equal", "different", "only in A", "only in B"]


class TensorDiff(Struct, frozen=True):
    """How a tensor of A differs from that of B.

    ``elements`` and the attributes after it are None if elements were not compared: a tensor is missing,
    the shapes differ, or only one tensor is a PRNG key.

    Attributes:
        status: "equal" if names, shapes, dtypes and all bits are equal.
        shape_a, shape_b, dtype_a, dtype_b: None if the tensor is missing.
        detail: a difference other than in elements, in words.
        compared_as: the type in which values are compared; it represents both dtypes exactly: "bits" for
            PRNG keys, "integers" (of any size), "float64" or "complex128".
        elements: how many elements differ: in their bits if the dtypes are equal, else in their values.
        nonfinite: how many of the differing elements are NaN or infinite in A or in B.
        nans_a, nans_b, infinities_a, infinities_b: how many of all elements are NaN, or infinite.
        largest: the largest ``|a - b|`` over finite elements; None if no finite elements differ, and for keys.
        index: the first element, in row-major order, with that difference; without one, the first that differs.
        relative: ``‖a - b‖₂ / ‖a‖₂`` over the elements that are finite in A and in B; 0.0 if none of
            them differs, inf if A is all zeros and B is not; None for keys.
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
        """Whether the tensor differs, or is on one side only."""
        return self.status != "equal"

    def __repr__(self) -> str:
        if self.elements is None or not self.is_difference:
            return f"TensorDiff({self.name!r}: {self.detail or self.status})"
        return (
            f"TensorDiff({self.name!r}: {self.elements:,} elements differ, largest {self.largest}, "
            f"relative {self.relative})"
        )


class LeafDiff(Struct, frozen=True):
    """The difference of a leaf that is not a tensor in both checkpoints.

    Attributes:
        a, b: a description, such as ``"'adam'"`` for a string, ``"None"``, ``"Dict"`` or ``"float32 of shape
            [3]"``; None if the leaf is missing.
    """

    name: str
    status: DiffStatus
    a: str | None
    b: str | None

    @property
    def is_difference(self) -> bool:
        """Whether the leaf differs, or is on one side only."""
        return self.status != "equal"


class DiffReport(Struct, frozen=True):
    """How two checkpoints differ.

    Attributes:
        tensors: by name, those of A in its order, then those that only B has.
        leaves: the same for strings, None, empty containers, and leaves that are a tensor in only one of the two.
        seconds: wall time.
        warnings: one sentence for each checkpoint of which chunks are not stored.
    """

    a: str
    b: str
    tensors: Mapping[str, TensorDiff]
    leaves: Mapping[str, LeafDiff]
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def differences(self) -> int:
        """The number of tensors and other leaves that differ, or are in only one checkpoint."""
        tensors = sum(t.is_difference for t in self.tensors.values())
        return tensors + sum(x.is_difference for x in self.leaves.values())

    def __repr__(self) -> str:
        tensors = sum(t.is_difference for t in self.tensors.values())
        leaves = sum(x.is_difference for x in self.leaves.values())
        return (
            f"DiffReport({self.a!r}, {self.b!r}: {tensors:,} of {len(self.tensors):,} tensors and "
            f"{leaves:,} of {len(self.leaves):,} other leaves differ)"
        )
