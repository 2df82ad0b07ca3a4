"""Migrations: the tables of an older version become those of this one.

Each step is a file in ``migrations/versions``, in the order of their numbers. Steps only add (tables, indexes,
columns that may be null or have a default in the database), so that servers of the version before go on using
the same records; a table or column that falls out of use is removed one version later. Records of a newer version
are used as they are, if they have what this version needs.

A migration holds a lock until it has committed: PostgreSQL's advisory lock, or SQLite's own lock for writing. All
steps are one transaction, so that a process which is killed leaves the records as they were.
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

from reshard_server.db.bounded_connection import waiting_as_long_as_it_takes
from reshard_server.db.tables import METADATA

FIRST = "0001"
"""The tables of version 0.1.0, which recorded no number."""

LOCK_KEY = 7_265_736_861_726_402
"""Of the advisory lock in PostgreSQL; one number above the lock of turns."""


class LackingError(Exception):
    """The tables lack something that this version needs; the text says what."""


class PendingError(Exception):
    """The tables are of an older version, and were not to be migrated."""


def migrate(db: sa.Engine, *, apply: bool = True) -> list[str]:
    """Brings the tables to this version; the numbers of the steps that were done.

    Args:
        apply: whether pending steps are done; else PendingError names them.

    Raises LackingError where the tables are not of a version that this one knows.
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
    """A transaction that no other process migrates beside."""
    with db.begin() as connection, waiting_as_long_as_it_takes(connection):
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
    """Numbers of the steps that are to be done, in order; none for records of a newer version.

    Tables without a number are those of 0.1.0, and get its number.
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
    return {table.name: frozenset(table.c.keys()) for table in tables.sorted_tables}


def _columns_of_first() -> Columns:
    """Those that the first step makes."""
    with sa.create_engine("sqlite://").begin() as connection:
        command.upgrade(_config(connection), FIRST)
        made = sa.MetaData()
        made.reflect(connection)
        return {n: c for n, c in _columns(made).items() if n != "alembic_version"}


def _refuse_lacking(connection: sa.Connection, wanted: Columns) -> None:
    """Raises LackingError where a table or a column of it is not there."""
    found = sa.inspect(connection)
    for table, columns in wanted.items():
        if not found.has_table(table):
            raise LackingError(f"there is no table {table!r}")
        there = {column["name"] for column in found.get_columns(table)}
        if lacking := sorted(columns - there):
            raise LackingError(f"the table {table!r} has no {', '.join(lacking)}")
