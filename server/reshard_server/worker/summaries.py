"""Summaries: what a page shows of a checkpoint, and of a layout on one; tensors beyond the first are counted only."""

from __future__ import annotations

from typing import Any

from reshard.cli.json_output import inspection, layout_document

MOST_TENSORS = 200
"""Tensors that are told one by one."""

Document = dict[str, Any]


def contents(info: Any) -> Document:
    """What ``reshard.api.inspect`` found, cut."""
    whole = inspection(info)
    kept = ("format", "style", "nbytes", "items", "meshes", "warnings")
    return {
        "command": "contents",
        **{name: whole[name] for name in kept},
        "tensors": whole["tensors"][:MOST_TENSORS],
        "count": len(whole["tensors"]),
    }


def layout_summary(source: str, preview: Any) -> Document:
    """What ``reshard.api.preview_layout`` found, cut."""
    whole = layout_document("", source, preview)
    return {
        **whole,
        "command": "layout_summary",
        "tensors": whole["tensors"][:MOST_TENSORS],
        "count": len(whole["tensors"]),
    }
