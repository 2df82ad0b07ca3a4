"""Conversions in parts: their rows, what a host must have for them, and what each host has."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds columns that may be null, an index and a table."""
    new: dict[str, sa.types.TypeEngine[Any]] = {
        "parent": sa.String(64),
        "part": sa.Integer(),
        "parts": sa.Integer(),
        "parts_left": sa.Integer(),
        "host": sa.String(255),
        "max_memory": sa.BigInteger(),
        "workers": sa.Integer(),
    }
    for name, kind in new.items():
        op.add_column("conversions", sa.Column(name, kind))
    op.create_index("conversions_by_parent", "conversions", ["parent", "part"])
    op.create_table(
        "conversion_needs",
        sa.Column("conversion", sa.String(64), primary_key=True),
        sa.Column("label", sa.String(512), primary_key=True),
    )
    told: dict[str, sa.types.TypeEngine[Any]] = {
        "max_memory": sa.BigInteger(),
        "slots": sa.Integer(),
        "labels": sa.JSON(),
    }
    for name, kind in told.items():
        op.add_column("executors", sa.Column(name, kind))
