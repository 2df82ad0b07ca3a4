"""The table of deliveries, which tell receivers of ended conversions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Makes the table; it is written out, since ``db.tables`` may have changed it by a later version."""
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("conversion", sa.String(64), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("event", sa.String(96), nullable=False),
        sa.Column("ended", sa.JSON, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.Text),
        sa.Column("claim", sa.String(32)),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
    )
    op.create_index("deliveries_by_conversion", "deliveries", ["conversion", "created_at"])
    op.create_index("deliveries_in_queue", "deliveries", ["state", "next_at"])
