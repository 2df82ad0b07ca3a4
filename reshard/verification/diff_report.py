"""The report of ``diff``: the differences of each tensor and leaf, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

from reshard.answers.record import Json, Record
from reshard.verification.elements import ComparedAs

DiffStatus = Literal["equal", "different", "only in A", "only in B"]

LeafStatus = Literal[DiffStatus, "no place in A", "no place in B"]


class TensorDiff(Record, frozen=True):
    """The difference between a tensor of A and that of B.

    ``elements`` and the attributes after it are None if elements were not compared: a tensor is missing,
    the shapes differ, or only one tensor is a PRNG key.

    Attributes:
        status: "equal" if names, shapes, dtypes and all bits are equal.
        shape_a, shape_b, dtype_a, dtype_b: None if the tensor is missing.
        detail: a difference other than in elements, in words.
        compared_as: the type in which values are compared; it represents both dtypes exactly: "bits" for
            PRNG keys, "integers" (of any size), "float64" or "complex128".
        elements: the number of elements that differ: in their bits if the dtypes are equal, else in their values.
        nonfinite: the number of differing elements that are NaN or infinite in A or in B.
        nans_a, nans_b, infinities_a, infinities_b: the numbers of elements that are NaN, or infinite.
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
        """True if the tensor differs, or is on one side only."""
        return self.status != "equal"

    def __repr__(self) -> str:
        if self.elements is None or not self.is_difference:
            return f"TensorDiff({self.name!r}: {self.detail or self.status})"
        return (
            f"TensorDiff({self.name!r}: {self.elements:,} elements differ, largest {self.largest}, "
            f"relative {self.relative})"
        )


class LeafDiff(Record, frozen=True):
    """The comparison of a leaf that is not a tensor on both sides: a string, None or an empty container.

    Attributes:
        name: in B; in A for a leaf that only A has.
        status: "no place in B" if B lacks it because its format, such as safetensors, holds tensors only; that is no
            difference.
        a, b: a description, such as ``"'adam'"`` for a string, ``"None"``, ``"Dict"`` or ``"float32 of shape
            [3]"``; None if the leaf is missing.
        source: the name in A; None for a leaf that only B has.
    """

    name: str
    status: LeafStatus
    a: str | None
    b: str | None
    source: str | None = None

    @property
    def is_difference(self) -> bool:
        """True if the leaf differs, or is on one side only though the other has a place for it."""
        return self.status in ("different", "only in A", "only in B")

    def __repr__(self) -> str:
        sides = (("A", self.a), ("B", self.b)) if self.status == "different" else ()
        found = "".join(f", {_short(text)} in {side}" for side, text in sides)
        return f"LeafDiff({self.name!r}: {self.status}{found})"


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= 40 else f"{text[:39]}…"


def no_place_warnings(a: str, b: str, leaves: Iterable[LeafDiff]) -> tuple[str, ...]:
    """One sentence for each side whose format has no place for leaves of the other."""
    lost: dict[str, list[str]] = {}
    for leaf in leaves:
        if leaf.status.startswith("no place"):
            lost.setdefault(leaf.status, []).append(leaf.name)
    sides = {"no place in A": (b, a), "no place in B": (a, b)}
    return tuple(_not_compared(*sides[status], names) for status, names in lost.items())


def _not_compared(full: str, lacking: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return (
        f"strings, None and empty containers of {full!r} are not compared, since the format of {lacking!r} holds tensors "
        f"only: {', '.join(map(repr, names[:5]))}{more}"
    )


class DiffReport(Record, frozen=True):
    """The differences of two checkpoints.

    Attributes:
        tensors: by name, those of A in its order, then those that only B has.
        leaves: the same for strings, None, empty containers, and leaves that are a tensor in only one of the two.
        seconds: wall time.
        warnings: one sentence each for leaves that are not compared, and for parts that a checkpoint lacks or leaves out.
    """

    JSON: ClassVar[Json] = Json(
        ("a", "b", "equal", "differences", "warnings", "tensors", "leaves", "seconds"),
        listed=("tensors", "leaves"),
    )

    a: str
    b: str
    tensors: Mapping[str, TensorDiff]
    leaves: Mapping[str, LeafDiff]
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if nothing differs."""
        return not self.differences

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
