"""Layouts as the API takes them: a LayoutMap becomes the content of a layout file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard import LayoutMap


def layout_of(layout: Any) -> Any:
    """What is sent for a layout.

    Raises LayoutError for a LayoutMap whose keys the server would not take.
    """
    if isinstance(layout, LayoutMap):
        return layout.to_mapping()
    return dict(layout) if isinstance(layout, Mapping) else layout


def with_layout(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a conversion, with what is sent for the layout among them."""
    given = dict(options)
    if "layout" in given:
        given["layout"] = layout_of(given["layout"])
    return given
