"""Migrations: turn the tables of an older version into those of this one.

Each step is a file in ``migrations/versions``; steps run in the order of their numbers. Steps only add (tables, indexes,
columns that may be null or have a default in the database), so that servers of the previous version can still use the
records. A table or column that is no longer used is removed one version later. Records of a newer version are used as
they are, if they have what this version needs.

A migration holds a lock until it has committed: PostgreSQL's advisory lock, or SQLite's write lock. All steps are one
transaction, so a process that is killed leaves the records unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from reshard_server.db.bounded_connection import without_time_limits
from reshard_server.db.tables import METADATA

FIRST = "0001"
"""The tables of version 0.1.0, which recorded no number."""

LOCK_KEY = 7_265_736_861_726_402
"""PostgreSQL's advisory lock of migrations; one number above the lock of claims."""


class LackingError(Exception):
    """The tables lack something that this version needs; the text says what."""


class PendingError(Exception):
    """The tables are of an older version, and migrating them was not allowed."""


def migrate(db: sa.Engine, *, apply: bool = True) -> list[str]:
    """Migrates the tables to this version; returns the numbers of the steps that were done.

    Args:
        apply: whether to do pending steps; otherwise PendingError names them.

    Raises LackingError for tables of an unknown version.
    """
    with _alone(db) as connection:
        pending = _pending(connection)
        if pending and not apply:
            raise PendingError(", ".join(pending))
        if pending:
            command.upgrade(_config(connection), "head")
        _refuse_lacking(connection, _columns(METADATA))
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
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _pending(connection: sa.Connection) -> list[str]:
    """Numbers of the pending steps, in order; none for records of a newer version.

    Tables without a version number are those of 0.1.0, and get its number.
    """
    steps = ScriptDirectory.from_config(_config(connection)).walk_revisions()
    numbers = [step.revision for step in steps][::-1]
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None and sa.inspect(connection).has_table("conversions"):
        _refuse_lacking(connection, _columns_of_first())
        command.stamp(_config(connection), FIRST)
        current = FIRST
    if current is None:
        return numbers
    return numbers[numbers.index(current) + 1 :] if current in numbers else []


Columns = Mapping[str, frozenset[str]]
"""Names of columns by table."""


def _columns(tables: sa.MetaData) -> Columns:
    return {
        table.name: frozenset(column.name for column in table.c) for table in tables.sorted_tables
    }


def _columns_of_first() -> Columns:
    """The columns that the first step makes."""
    with sa.create_engine("sqlite://").begin() as connection:
        command.upgrade(_config(connection), FIRST)
        made = sa.MetaData()
        made.reflect(connection)
        return {n: c for n, c in _columns(made).items() if n != "alembic_version"}


def _refuse_lacking(connection: sa.Connection, needed: Columns) -> None:
    """Raises LackingError if a table or one of its columns is missing."""
    existing = sa.inspect(connection)
    for table, columns in needed.items():
        if not existing.has_table(table):
            raise LackingError(f"there is no table {table!r}")
        there = {column["name"] for column in existing.get_columns(table)}
        if lacking := sorted(columns - there):
            raise LackingError(f"the table {table!r} has no {', '.join(lacking)}")
