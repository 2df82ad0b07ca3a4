"""Values as text and text as values: sizes, durations, layouts, casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.arguments import cast_pairs
from reshard.geometry.sizes import format_bytes, parse_bytes, shortest_bytes
from reshard.layout.bridges.from_keras import own_layout
from reshard.layout.changes import full_name
from reshard.layout.layout_text import parse_json, parse_yaml
from reshard.record import duration_text

if TYPE_CHECKING:
    from reshard.arguments import CastRules, DTypeLike  # noqa: TC004  (types, named for those who take them)

__all__ = [
    "CastRules",
    "DTypeLike",
    "cast_pairs",
    "duration_text",
    "format_bytes",
    "full_name",
    "own_layout",
    "parse_bytes",
    "parse_json",
    "parse_yaml",
    "shortest_bytes",
]
