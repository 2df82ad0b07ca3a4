"""The tables of the server's records; the same for SQLite and Postgres.

Times are seconds since 1970 in UTC. Documents are JSON. ``revision`` grows with every change of a row, so that readers
notice changes and writers do not overwrite each other's.

An executor (a process) has a running conversion under a claim, a random text that is new each time. Each
write about the conversion names the claim, so a process that lost the claim writes nothing. ``begun`` is true once any
attempt has moved data, so that later attempts resume instead of starting over.

A conversion in parts has further rows, one for each part: ``parent`` is the conversion's id, and ``part`` counts from 1. They are
claimed as conversions are, and never listed. The conversion's own row has ``parts``, their number, and ``parts_left``: NULL until the
split, then the parts that have not succeeded; at 0 the commit may be claimed. While parts are left the row has no claim. ``host`` is
the last host that had a claim, and ``max_memory`` (bytes) what a host must have, besides the labels of ``conversion_needs``.

``turns`` numbers the claims of each token: the token with the lowest number was served longest ago.

The run of a step is claimed likewise while the step is hard-linked. A folder of hard links (``schedule_holds``) belongs
to the process that makes it, then to the conversion that reads it; then it has no owner and is removed. Old runs
are forgotten, but the numbers of their steps are kept.

A delivery is claimed for one try: ``next_at`` then lies behind the longest time of a try, so that a process that dies loses none.

A change here needs a step in ``migrations/versions`` that changes existing databases; new ones get these tables.
"""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()

CONVERSIONS = sa.Table(
    "conversions",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("token", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("progress", sa.JSON),
    sa.Column("result", sa.JSON),
    sa.Column("read_bytes", sa.BigInteger),
    sa.Column("error", sa.JSON),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("schedule", sa.String(128)),
    sa.Column("executor", sa.String(64)),
    sa.Column("claim", sa.String(32)),
    sa.Column("begun", sa.Boolean, nullable=False, default=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("revision", sa.BigInteger, nullable=False, default=1),
    sa.Column("parent", sa.String(64)),
    sa.Column("part", sa.Integer),
    sa.Column("parts", sa.Integer),
    sa.Column("parts_left", sa.Integer),
    sa.Column("host", sa.String(255)),
    sa.Column("max_memory", sa.BigInteger),
    sa.Column("workers", sa.Integer),
    sa.Index("conversions_by_time", "created_at", "id"),
    sa.Index("conversions_by_state", "state", "created_at"),
    sa.Index("conversions_by_token", "token", "created_at"),
    sa.Index("conversions_of_token_by_state", "token", "state"),
    sa.Index("conversions_by_schedule", "schedule", "created_at"),
    sa.Index("conversions_in_queue", "state", "priority", "created_at"),
    sa.Index("conversions_by_parent", "parent", "part"),
)

CONVERSION_LABELS = sa.Table(
    "conversion_labels",
    METADATA,
    sa.Column("conversion", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.String(256), nullable=False),
    sa.Index("conversion_labels_by_value", "key", "value"),
)

CONVERSION_NEEDS = sa.Table(
    "conversion_needs",
    METADATA,
    sa.Column("conversion", sa.String(64), primary_key=True),
    sa.Column("label", sa.String(512), primary_key=True),
)

TURNS = sa.Table(
    "turns",
    METADATA,
    sa.Column("token", sa.String(64), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)

ENDED_TOTALS = sa.Table(
    "ended_totals",
    METADATA,
    sa.Column("state", sa.String(16), primary_key=True),
    sa.Column("within_seconds", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("conversions", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("moved_bytes", sa.BigInteger, nullable=False),
)

IDEMPOTENCY = sa.Table(
    "idempotency",
    METADATA,
    sa.Column("token", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("request_hash", sa.String(64), nullable=False),
    sa.Column("conversion", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

LAYOUTS, MAPS, VIEWS = (
    sa.Table(
        f"{noun}s",
        METADATA,
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column(noun, sa.JSON, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("deleted", sa.Boolean, nullable=False, default=False),
        sa.Column("bytes", sa.BigInteger),
        sa.Index(f"{noun}s_in_quota", "deleted", "token", "name", "bytes"),
    )
    for noun in ("layout", "map", "view")
)

SCHEDULES = sa.Table(
    "schedules",
    METADATA,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("schedule", sa.JSON, nullable=False),
    sa.Column("paused", sa.Boolean, nullable=False, default=False),
    sa.Column("token", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False),
    sa.Column("next_at", sa.Float),
    sa.Column("revision", sa.BigInteger, nullable=False, default=1),
    sa.Column("bytes", sa.BigInteger),
    sa.Index("schedules_in_quota", "token", "bytes"),
)

SCHEDULE_RUNS = sa.Table(
    "schedule_runs",
    METADATA,
    sa.Column("schedule", sa.String(128), primary_key=True),
    sa.Column("key", sa.String(128), primary_key=True),
    sa.Column("step", sa.BigInteger),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("conversion", sa.String(64)),
    sa.Column("detail", sa.Text),
    sa.Column("executor", sa.String(64)),
    sa.Column("claim", sa.String(32)),
    sa.Column("settled", sa.Integer, nullable=False, default=0),
    sa.Index("schedule_runs_by_time", "schedule", "at"),
    sa.Index("schedule_runs_to_settle", "settled"),
)

SCHEDULE_FORGOTTEN = sa.Table(
    "schedule_forgotten",
    METADATA,
    sa.Column("schedule", sa.String(128), primary_key=True),
    sa.Column("steps", sa.JSON, nullable=False),
)

SCHEDULE_OUTPUTS = sa.Table(
    "schedule_outputs",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("schedule", sa.String(128), nullable=False),
    sa.Column("template", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("step", sa.BigInteger),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("conversion", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("identity", sa.String(128), key="stamp"),
    sa.Index("schedule_outputs_by_schedule", "schedule"),
    sa.Index("schedule_outputs_by_conversion", "conversion"),
)

SCHEDULE_HOLDS = sa.Table(
    "schedule_holds",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("executor", sa.String(64), nullable=False),
    sa.Column("conversion", sa.String(64)),
    sa.Index("schedule_holds_by_conversion", "conversion"),
)

SESSIONS = sa.Table(
    "sessions",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("token", sa.String(64), nullable=False),
    sa.Column("token_sha256", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Index("sessions_by_token", "token_sha256", "created_at"),
    sa.Index("sessions_by_end", "expires_at"),
)

DELIVERIES = sa.Table(
    "deliveries",
    METADATA,
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
    sa.Index("deliveries_by_conversion", "conversion", "created_at"),
    sa.Index("deliveries_in_queue", "state", "next_at"),
)

EXECUTORS = sa.Table(
    "executors",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("heartbeat_at", sa.Float, nullable=False),
    sa.Column("max_memory", sa.BigInteger),
    sa.Column("slots", sa.Integer),
    sa.Column("labels", sa.JSON),
)
