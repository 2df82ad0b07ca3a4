"""An index for the conversions of a schedule, which its page and its retention look up."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds the index."""
    op.create_index("conversions_by_schedule", "conversions", ["schedule", "created_at"])
