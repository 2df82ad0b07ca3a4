"""Steps whose runs were forgotten, so that they are not taken for new."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0003"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "schedule_forgotten",
        sa.Column("schedule", sa.String(128), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("schedule"),
    )
