"""Stored maps, with the columns that stored layouts have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Adds the table and the index of its quota."""
    op.create_table(
        "maps",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("map", sa.JSON(), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.Column("bytes", sa.BigInteger()),
        sa.PrimaryKeyConstraint("name", "version"),
    )
    op.create_index("maps_in_quota", "maps", ["deleted", "token", "name", "bytes"])
