"""A LayoutMap as the content of a layout file, for a server; its keys must be valid patterns of layout files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reshard.errors import LayoutError
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import LayoutFile, Rule, Unmatched, layout_to_mapping
from reshard.layout.tensor_layout import TensorLayout
from reshard.patterns.compile import compile_pattern, shown

_FORMS = {"search": "{}", "match": r"\A(?:{})", "fullmatch": r"\A(?:{})\Z"}
"""The pattern that is searched for a key, by how the map looks its keys up."""


def map_as_file(
    mesh: DeviceMesh | None,
    layouts: Mapping[str, TensorLayout],
    *,
    match: str,
    unmatched: Unmatched,
    is_first: bool,
) -> dict[str, Any]:
    """The content of a layout file that finds the same layouts as the map.

    Args:
        is_first: whether the first of several keys that match counts, as in a file.

    Raises LayoutError for a key that is not supported as a pattern of a file, and for a map that a file cannot
    express.
    """
    if not is_first and len(layouts) > 1:
        raise LayoutError(
            "a layout file uses the first rule that matches, but this LayoutMap refuses names that several keys match; "
            "make it with ambiguous='first'"
        )
    mesh = mesh and mesh.recorded
    patterns = {key: _pattern(key, match) for key in layouts}
    for key, layout in layouts.items():
        if layout.device_mesh is not None and layout.device_mesh.recorded != mesh:
            raise LayoutError(
                f"the key {shown(key)} has a layout over {layout.device_mesh}, and the map has {mesh or 'no mesh'}; a layout "
                "file has one mesh for all rules"
            )
    exact = [key for key in layouts if _is_taken_by_others(key, patterns)]
    rules = [Rule(rf"\A{re.escape(key)}\Z", layouts[key].axes) for key in exact]
    rules += [Rule(pattern, layouts[key].axes) for key, pattern in patterns.items()]
    return layout_to_mapping(LayoutFile(mesh, tuple(rules), unmatched=unmatched))


def _pattern(key: str, match: str) -> str:
    pattern = _FORMS[match].format(key)
    compile_pattern(pattern, f"the key {shown(key)} of the LayoutMap", LayoutError)
    return pattern


def _is_taken_by_others(key: str, patterns: Mapping[str, str]) -> bool:
    """Whether another key matches a tensor whose name equals this key; the map would find the equal key first."""
    others = (re.compile(pattern) for other, pattern in patterns.items() if other != key)
    return any(pattern.search(key) for pattern in others)
