"""The tables of version 0.1.0, where promises about records of other versions begin.

Written out: tables.py moves on, and this stays as it is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes every table of 0.1.0."""
    op.create_table(
        "conversion_labels",
        sa.Column("conversion", sa.String(64), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("value", sa.String(256), nullable=False),
        sa.PrimaryKeyConstraint("conversion", "key"),
    )
    op.create_index("conversion_labels_by_value", "conversion_labels", ["key", "value"])
    op.create_table(
        "conversions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("progress", sa.JSON),
        sa.Column("result", sa.JSON),
        sa.Column("read_bytes", sa.BigInteger),
        sa.Column("error", sa.JSON),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("schedule", sa.String(128)),
        sa.Column("executor", sa.String(64)),
        sa.Column("claim", sa.String(32)),
        sa.Column("begun", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("conversions_by_state", "conversions", ["state", "created_at"])
    op.create_index("conversions_by_time", "conversions", ["created_at", "id"])
    op.create_index("conversions_by_token", "conversions", ["token", "created_at"])
    op.create_index("conversions_in_queue", "conversions", ["state", "priority", "created_at"])
    op.create_index("conversions_of_token_by_state", "conversions", ["token", "state"])
    op.create_table(
        "ended_totals",
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("within_seconds", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("conversions", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("moved_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("state", "within_seconds"),
    )
    op.create_table(
        "executors",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("heartbeat_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "idempotency",
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("conversion", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("token", "key"),
    )
    op.create_table(
        "layouts",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("layout", sa.JSON, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("deleted", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
    )
    op.create_table(
        "schedule_holds",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("executor", sa.String(64), nullable=False),
        sa.Column("conversion", sa.String(64)),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("schedule_holds_by_conversion", "schedule_holds", ["conversion"])
    op.create_table(
        "schedule_outputs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("schedule", sa.String(128), nullable=False),
        sa.Column("template", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("conversion", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("identity", sa.String(128)),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("schedule_outputs_by_conversion", "schedule_outputs", ["conversion"])
    op.create_index("schedule_outputs_by_schedule", "schedule_outputs", ["schedule"])
    op.create_table(
        "schedule_runs",
        sa.Column("schedule", sa.String(128), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("conversion", sa.String(64)),
        sa.Column("detail", sa.Text),
        sa.Column("executor", sa.String(64)),
        sa.Column("claim", sa.String(32)),
        sa.Column("settled", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("schedule", "key"),
    )
    op.create_index("schedule_runs_by_time", "schedule_runs", ["schedule", "at"])
    op.create_index("schedule_runs_to_settle", "schedule_runs", ["settled"])
    op.create_table(
        "schedules",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("schedule", sa.JSON, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("next_at", sa.Float),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "sessions",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("sessions_by_end", "sessions", ["expires_at"])
    op.create_index("sessions_by_token", "sessions", ["token_sha256", "created_at"])
