"""MapSummary: the effect of a map on a source, as plans and reports show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reshard.documents.shared import Change, MapAnswer
from reshard.maps.mapped import Mapped
from reshard.planning.plans import TensorPlan
from reshard.record import Record, counted


class MapSummary(Record, frozen=True):
    """The effect of a map on a source; a plan has it only if every source element is used and every target element is written once.

    Attributes:
        sources: tensors of the source that are taken.
        targets: tensors that are made of them.
        exact: those whose every bit is the source's; factors that are powers of two count, short of subnormals.
        rounded: those that arithmetic may round.
        cast: those of another dtype.
        tied: pairs of source tensors that must be equal; the first is not written.
        cropped: source tensors that are taken in part.
    """

    sources: int
    targets: int
    exact: int
    rounded: int
    cast: int
    tied: tuple[tuple[str, str], ...] = ()
    cropped: tuple[str, ...] = ()

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

    def _document(self) -> MapAnswer:
        return MapAnswer(
            self.sources, self.targets, self.exact, self.rounded, self.cast, self.tied, self.cropped
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
