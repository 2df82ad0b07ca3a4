"""The tables of version 0.1.0, which ``db.database`` makes from ``db.tables``: the number that the first step continues."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Does nothing: records have this number from the start."""
