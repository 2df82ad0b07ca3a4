"""Migrations: make the tables of new records, and turn those of an older version into those of this one.

New records get the tables of ``db.tables`` and the newest number. Each step that changes older ones is a file in ``migrations/versions``; steps
run in the order of their numbers. Steps only add (tables, indexes,
columns that may be null or have a default in the database), so that servers of the previous version can still use the
records. A table or column that is no longer used is removed one version later. Records of a newer version are used as
they are, if they have what this version needs.

A migration holds a lock until it has committed: PostgreSQL's advisory lock, or SQLite's write lock. All steps are one
transaction, so a process that is killed leaves the records unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from reshard_server.db.bounded_connection import without_time_limits
from reshard_server.db.tables import METADATA

SCRIPTS = Path(__file__).parent / "migrations"
"""The folder of Alembic's steps."""

LOCK_KEY = 7_265_736_861_726_402
"""PostgreSQL's advisory lock of migrations; one number above the lock of claims."""


class LackingError(Exception):
    """The tables lack a part that this version needs; the text names it."""


class PendingError(Exception):
    """The tables are of an older version, and migrating them was not allowed."""


def migrate(db: sa.Engine, *, apply: bool = True) -> list[str]:
    """Migrates the tables to this version; returns the numbers of the steps that were done.

    Args:
        apply: do pending steps; otherwise PendingError names them.

    Raises LackingError for tables of an unknown version.
    """
    with _alone(db) as connection:
        config = _config(connection)
        current = MigrationContext.configure(connection).get_current_revision()
        pending = _pending(config, current)
        if pending and not apply:
            raise PendingError(", ".join(pending))
        if current is None:
            _make_tables(connection, config)
        elif pending:
            command.upgrade(config, "head")
        _refuse_lacking(connection, METADATA)
    return pending


@contextmanager
def _alone(db: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction during which no other process migrates."""
    with db.begin() as connection, without_time_limits(connection):
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK_KEY)))
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def _config(connection: sa.Connection) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS))
    return config


def _pending(config: Config, current: str | None) -> list[str]:
    """Numbers of the pending steps, in order; none for records of a newer version."""
    steps = ScriptDirectory.from_config(config).walk_revisions()
    numbers = [step.revision for step in steps][::-1]
    if current is None:
        return numbers
    return numbers[numbers.index(current) + 1 :] if current in numbers else []


def _make_tables(connection: sa.Connection, config: Config) -> None:
    # Tables without a number are not this program's, or are of a version that was never published: nothing is known of them.
    if sa.inspect(connection).has_table("conversions"):
        raise LackingError("its tables have no version number")
    METADATA.create_all(connection)
    command.stamp(config, "head")


def _refuse_lacking(connection: sa.Connection, needed: sa.MetaData) -> None:
    """Raises LackingError if a table or one of its columns is missing."""
    existing = sa.inspect(connection)
    for table in needed.sorted_tables:
        if not existing.has_table(table.name):
            raise LackingError(f"there is no table {table.name!r}")
        there = {column["name"] for column in existing.get_columns(table.name)}
        if lacking := sorted({column.name for column in table.c} - there):
            raise LackingError(f"the table {table.name!r} has no {', '.join(lacking)}")
