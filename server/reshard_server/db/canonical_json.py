"""One canonical text per JSON document, for comparing and hashing."""

from __future__ import annotations

import json
from typing import Any


def canonical_text(document: Any) -> str:
    """JSON with sorted keys; unlike ``==`` it distinguishes 1 from true.

    The order of a mesh's axes has a meaning, so the order of ``{"data": 4, "model": 2}`` is kept.
    """
    return json.dumps(_ordered(document), sort_keys=True)


def _ordered(node: Any) -> Any:
    if isinstance(node, list):
        return list(map(_ordered, node))
    if not isinstance(node, dict):
        return node
    made = {key: _ordered(value) for key, value in node.items()}
    mesh = made.get("mesh")
    if isinstance(mesh, dict) and "axes" not in mesh:
        made["mesh"] = [[name, size] for name, size in mesh.items()]
    return made
