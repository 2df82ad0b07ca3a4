"""Converts layouts for the API: a LayoutMap becomes the content of a layout file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard import LayoutMap
from reshard.surface.words import cast_pairs, own_layout


def layout_of(layout: Any) -> Any:
    """The layout as the API takes it.

    Raises LayoutError for a LayoutMap with keys that the server would refuse.
    """
    layout = own_layout(layout)
    if isinstance(layout, LayoutMap):
        return layout.to_mapping()
    return dict(layout) if isinstance(layout, Mapping) else layout


def with_layout(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a conversion, with the layout and the casts as the API takes them."""
    given = dict(options)
    if "layout" in given:
        given["layout"] = layout_of(given["layout"])
    if given.get("cast") is not None:
        given["cast"] = cast_pairs(given["cast"])
    return given
