"""The table of views, which are stored by name as layouts and maps are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Makes the table; it is written out, since ``db.tables`` may have changed it by a later version."""
    op.create_table(
        "views", sa.Column("name", sa.String(128), primary_key=True), sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("view", sa.JSON, nullable=False), sa.Column("token", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False), sa.Column("deleted", sa.Boolean, nullable=False),
        sa.Column("bytes", sa.BigInteger),
    )  # fmt: skip
    op.create_index("views_in_quota", "views", ["deleted", "token", "name", "bytes"])
