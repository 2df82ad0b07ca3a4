"""One canonical text per JSON document, for comparing and hashing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


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


PAGE_BYTES = 4 << 20
"""Size limit of the documents of one page; a larger document has a page of its own."""


def stored_bytes(document: Any) -> int:
    """The size of a document in the records."""
    return len(json.dumps(document).encode())


def bytes_of(db: sa.Engine, document: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The SQL expression for the size of a recorded document."""
    if db.dialect.name == "postgresql":
        return sa.func.octet_length(sa.cast(document, sa.Text))
    return sa.func.length(sa.cast(document, sa.LargeBinary))


def fitting(sizes: Sequence[int]) -> int:
    """The number of these documents that fit into one page, counted from the first; at least one."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > PAGE_BYTES and number:
            return number
    return len(sizes)
