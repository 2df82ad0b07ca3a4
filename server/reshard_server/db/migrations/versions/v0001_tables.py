"""The tables of version 0.1.0, which ``db.migrate`` makes of ``db.tables``: the number from which the first step will go on."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing: records have this number from their first moment on."""
