"""Sizes of stored documents, and pages that hold no more of them than memory allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

PAGE_BYTES = 4 << 20
"""Documents of one page; one that is larger alone is a page of its own."""


def stored_bytes(document: Any) -> int:
    """How many bytes a document takes in the records."""
    return len(json.dumps(document).encode())


def bytes_of(db: sa.Engine, document: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The same, of a document that is there."""
    if db.dialect.name == "postgresql":
        return sa.func.octet_length(sa.cast(document, sa.Text))
    return sa.func.length(sa.cast(document, sa.LargeBinary))


def fitting(sizes: Sequence[int]) -> int:
    """How many documents, from the first on, one page may hold; at least one."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > PAGE_BYTES and number:
            return number
    return len(sizes)
