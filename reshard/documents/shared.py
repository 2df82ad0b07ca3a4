"""What several documents have: meshes, numbers and names with one meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct, structs

Shape = tuple[int, ...]
Axes = tuple[str | tuple[str, ...] | None, ...]
Strategy = Literal["copy", "whole", "scatter", "weave", "block"]
Digest = Annotated[str, Meta(description="CRC-64/NVME, 16 hex digits.")]

MissingNumbers = Annotated[
    Mapping[str, int],
    Meta(
        description="How many chunks of each source tensor are not stored; the fill value is taken."
    ),
]

ONLY_COMMANDS = Meta(extra={"only_commands": True})
"""Of a member that commands print, and that no answer by HTTP has."""

D = TypeVar("D", bound=Struct)


class MeshDocument(Struct, frozen=True):
    """A mesh of devices."""

    axes: tuple[str, ...]
    shape: Shape


def document_of(record: Struct, kind: type[D], **more: Any) -> D:
    """The document of a record that has the same fields, besides ``more``. Raises TypeError if it has others."""
    return kind(**structs.asdict(record), **more)
