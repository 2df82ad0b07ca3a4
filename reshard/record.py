"""Record: what a call returns, which can be written as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, to_builtins


class Record(Struct, frozen=True):
    """The base of what public functions return."""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values for ``json.dumps``, with the keys that ``--json`` writes.

        ``docs/reference/json-output.md`` lists them. Numbers that are not finite are text, since JSON has none.
        """
        found: dict[str, Any] = plain(self._document())
        return found

    def _document(self) -> dict[str, Any]:
        """The keys and values, before they are made plain; all fields unless a record says otherwise."""
        fields: dict[str, Any] = to_builtins(self, enc_hook=dict)  # of a read-only mapping
        return fields


def plain(value: Any) -> Any:
    """The value for JSON, which has no infinity: numbers that are not finite become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    return value
