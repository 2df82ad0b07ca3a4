"""What is shown of a map: how many tensors become how many, and what becomes of their elements."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Change = Literal["exact", "rounded", "cast"]
"""Whether every bit of a tensor is the source's; or arithmetic rounded it; or it was cast."""


class MapAnswer(Struct, frozen=True):
    """What a map makes of a source. Every element of ``sources`` is used, and every element of ``targets`` is written once."""

    sources: Annotated[int, Meta(description="Tensors of the source that are taken.")]
    targets: Annotated[int, Meta(description="Tensors that are made of them.")]
    exact: int
    rounded: int
    cast: int
    tied: Annotated[
        tuple[tuple[str, str], ...],
        Meta(description="Pairs of source tensors that must be equal; the first is not written."),
    ]
    cropped: Annotated[
        tuple[str, ...], Meta(description="Source tensors of which the map takes a part.")
    ]
