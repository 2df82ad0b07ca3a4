"""Writes the markers that a writer leaves to the transaction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_markers(root: Path, markers: Mapping[str, bytes]) -> None:
    """As a transaction writes them, last of all."""
    for name, data in markers.items():
        (root / name).write_bytes(data)
