"""Target pieces: the pieces of one target of a rule, from the patterns that the rule was compiled to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reshard.errors import PlanError
from reshard.geometry.dtypes import PACKED
from reshard.geometry.grid import Box
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.compile_rule import CompiledRule
from reshard.maps.matching import Matched
from reshard.maps.pattern import PiecePattern
from reshard.maps.rule import MapRule
from reshard.planning.piece import Piece


def assignments(counts: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every choice of indices, the last name's fastest."""
    names = list(counts)
    for values in itertools.product(*(range(counts[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def fill_element(rule: MapRule, dtype: str) -> bytes:
    """The bytes of the element for places that no source fills."""
    import numpy as np

    from reshard.geometry.dtypes import numpy_dtype

    if dtype in PACKED:
        return b""
    asked = 0.0 if rule.fill is None else rule.fill
    with np.errstate(all="ignore"):
        value = np.array([asked]).astype(numpy_dtype(dtype))
    if not np.array_equal(
        value.astype(complex), [asked], equal_nan=True
    ):  # also of complex numbers
        raise PlanError(
            f"{rule.label}: {dtype} has no element {rule.fill}; fill with one that it has"
        )
    return value.tobytes()


class TargetPieces(Struct):
    """Makes the pieces of one target.

    Attributes:
        loops: the indices in its name.
        element: the bytes of the element for places that no source fills.
    """

    spec: TensorSpec
    found: Sequence[Matched]
    compiled: CompiledRule
    loops: Mapping[str, int]
    element: bytes

    def most(self, patterns: Sequence[PiecePattern]) -> int:
        """The most pieces that there can be, before any is made."""
        return sum(math.prod(self._own_indices(pattern).values()) for pattern in patterns)

    def all(self, patterns: Sequence[PiecePattern]) -> Iterator[Piece]:
        """The pieces, in order."""
        for pattern in patterns:
            for values in assignments(self._own_indices(pattern)):
                at = {**self.loops, **values}
                if pattern.is_for(at):
                    yield self._piece(pattern, at)

    def _piece(self, pattern: PiecePattern, at: Mapping[str, int]) -> Piece:
        target = pattern.of_target.at(at)
        if pattern.source < 0:
            full, view = Box.full(target.shape), pattern.of_target.view
            return Piece(
                "", full, self.spec.name, target, pattern.axis_order, self.spec.dtype, self.spec.dtype,
                source_view=view, target_view=view, fill=self.element,
            )  # fmt: skip
        matched = self.found[pattern.source]
        return Piece(
            matched.name(at),
            pattern.of_source.at(at),
            self.spec.name,
            target,
            pattern.axis_order,
            matched.spec.dtype,
            self.spec.dtype,
            source_view=pattern.of_source.view,
            target_view=pattern.of_target.view,
            arithmetic=self.compiled.arithmetic,
        )

    def _own_indices(self, pattern: PiecePattern) -> dict[str, int]:
        """The stacked indices of the name of a pattern's source, and the number of places of each."""
        stacked = self.compiled.stacked
        indices = self.found[pattern.source].indices if pattern.source >= 0 else ()
        return {index: stacked[index] for index in indices if index in stacked}
