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
        return values(self._document())

    def _document(self) -> Struct:
        """What is shown of it: the record itself, unless a document of ``reshard.documents`` says otherwise."""
        return self


def values(document: Struct) -> dict[str, Any]:
    """A document as plain values for ``json.dumps``; members that are not set are left out."""
    found: dict[str, Any] = plain(to_builtins(document, enc_hook=dict))  # of a read-only mapping
    return found


def plain(value: Any) -> Any:
    """The value for JSON, which has no infinity: numbers that are not finite become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    return value
