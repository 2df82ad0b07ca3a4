"""MapSummary: the effect of a map on a source, as plans and reports show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from reshard.answers.record import Record, counted
from reshard.answers.shared import Change
from reshard.maps.mapped import Mapped
from reshard.planning.plans import TensorPlan


class MapSummary(Record, frozen=True):
    """The effect of a map on a source. Every element of ``sources`` is used, and every element of ``targets`` is written once.

    Attributes:
        exact: those whose every bit is the source's; factors that are powers of two count, short of subnormals.
        rounded: those that arithmetic may round.
        cast: those of another dtype.
    """

    sources: Annotated[int, Meta(description="Tensors of the source that are taken.")]
    targets: Annotated[int, Meta(description="Tensors that are made of them.")]
    exact: int
    rounded: int
    cast: int
    tied: Annotated[
        tuple[tuple[str, str], ...],
        Meta(description="Pairs of source tensors that must be equal; the first is not written."),
    ] = ()
    cropped: Annotated[
        tuple[str, ...], Meta(description="Source tensors of which the map takes a part.")
    ] = ()

    @classmethod
    def of(cls, mapping: Mapped, tensors: Sequence[TensorPlan]) -> MapSummary:
        """The summary of a map whose targets are planned."""
        taken = {name for made in mapping.tensors for name in made.sources}
        counts = Counter(map(change_of, tensors))
        return cls(
            len(taken) + len(mapping.equal),
            len(tensors),
            counts["exact"],
            counts["rounded"],
            counts["cast"],
            mapping.equal,
            mapping.cropped,
        )

    def __repr__(self) -> str:
        every = "all elements but those of crops" if self.cropped else "every element"
        made = [f"{n:,} {what}" for n, what in ((self.exact, "exact"), (self.rounded, "rounded"), (self.cast, "cast")) if n]  # fmt: skip
        tied = f"; {counted(len(self.tied), 'tied tensor')} must be equal" if self.tied else ""
        return (
            f"map: {counted(self.sources, 'tensor')} {'becomes' if self.sources == 1 else 'become'} {self.targets:,}, {every} once "
            f"({', '.join(made)}){tied}"
        )


def change_of(tensor: TensorPlan) -> Change:
    """The change to a tensor's elements."""
    pieces = tensor.pieces
    if any(p.arithmetic is not None and not p.arithmetic.is_exact for p in pieces):
        return "rounded"
    return "cast" if any(piece.is_cast for piece in pieces) else "exact"


def sources_of(tensor: TensorPlan) -> tuple[str, ...]:
    """The names of a tensor's sources, each once."""
    return tuple(dict.fromkeys(piece.source for piece in tensor.pieces if piece.fill is None))
