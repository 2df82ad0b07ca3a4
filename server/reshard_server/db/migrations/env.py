"""Alembic's script for each command; it uses the connection that ``db.database`` has opened and locked."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
