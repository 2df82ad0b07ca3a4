"""Adds the sizes of layouts and schedules, for quotas; rows of older versions have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Adds the columns, and indexes with all columns that quotas need."""
    op.add_column("layouts", sa.Column("bytes", sa.BigInteger()))
    op.create_index("layouts_in_quota", "layouts", ["deleted", "token", "name", "bytes"])
    op.add_column("schedules", sa.Column("bytes", sa.BigInteger()))
    op.create_index("schedules_in_quota", "schedules", ["token", "bytes"])
