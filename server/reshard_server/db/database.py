"""The database of the server's records: SQLite in the state folder, or PostgreSQL; opened, and migrated.

With SQLite only one server at a time uses and migrates the records: it locks the state folder.

New records get the tables of ``db.tables`` and the newest number. Each step that changes older ones is a file in
``migrations/versions``; steps run in the order of their numbers. Steps only add (tables, indexes, columns that may be null or
have a default in the database), so that servers of the previous version can still use the records. A table or column that is no
longer used is removed one version later. Records of a newer version are used as they are, if they have what this version needs.

A migration holds a lock until it has committed: PostgreSQL's advisory lock, or SQLite's write lock. All steps are one
transaction, so a process that is killed leaves the records unchanged.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from reshard.errors import MissingPackageError, ReshardError, StorageError
from reshard_server.db.clock import give_clock
from reshard_server.db.connections import (
    ANSWER_SECONDS,
    CONNECT_ARGUMENTS,
    BoundedConnection,
    OneWriterEngine,
    give_news,
    without_time_limits,
)
from reshard_server.db.tables import METADATA
from reshard_server.errors.error_handlers import renew_read_only
from reshard_server.settings import Settings

LOCK_NAME = "server.lock"


@contextmanager
def state_locked(settings: Settings) -> Iterator[None]:
    """Makes the state folder if needed, and locks it; with PostgreSQL replicas share it without a lock.

    Raises StorageError if another server has locked it.
    """
    settings.state.mkdir(0o700, parents=True, exist_ok=True)  # only this user may see the records
    if settings.database_url is not None:
        yield
        return
    lock = _lock(settings.state)
    try:
        yield
    finally:
        os.close(lock)


def _lock(state: Path) -> int:
    lock = os.open(state / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode(errors="replace") or "unknown"
        os.close(lock)
        raise StorageError(
            f"another server (process {holder}) works on the state folder {str(state)!r}; end it, give this one its own "
            "folder (--state), or let both share a Postgres (database_url)"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


LOG = logging.getLogger(__name__)

LEAST_SQLITE = (3, 42)
"""Heartbeats need ``unixepoch('subsec')``."""

BUSY_MILLISECONDS = 10_000

IDLE_MILLISECONDS = 2_500
"""Postgres ends a transaction that is idle for this long.

A process that froze within a transaction, or whose host lost power, would hold its locks for ever. The limit is shorter
than ``ANSWER_SECONDS``, so that others waiting for the lock get it instead of an error.
"""


def open_database(settings: Settings) -> sa.Engine:
    """Opens the records and migrates their tables to this version, if the settings allow.

    Raises MissingPackageError if Python's SQLite is too old and no newer one is installed, StorageError
    if the database cannot be opened, or its tables cannot be used.
    """
    engine = _engine(settings)
    if done := _migrate(engine, apply=settings.migrate_at_start):
        LOG.info("migrated the records", extra={"migrations": done})
    return engine


def open_migrated(settings: Settings) -> tuple[sa.Engine, list[str]]:
    """Like ``open_database``, but always migrates; also returns the numbers of the migrations that were done."""
    engine = _engine(settings)
    return engine, _migrate(engine, apply=True)


def _migrate(engine: sa.Engine, *, apply: bool) -> list[str]:
    try:
        return migrate(engine, apply=apply)
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise StorageError(
            f"cannot open the database of the server's records ({shown(engine)}): {reason}; check that it "
            "exists, and that this user may write to it"
        ) from error
    except LackingError as error:
        raise StorageError(
            f"the server's records ({shown(engine)}) were made by a version that this one cannot migrate from: {error}; "
            "run the version that made them, or start with an empty state folder or database"
        ) from None
    except PendingError as error:
        raise StorageError(
            f"the server's records ({shown(engine)}) are of an older version: the migrations {error} are pending, and "
            "migrate_at_start is off; run 'reshard serve --migrate' with the same settings first"
        ) from None


def _engine(settings: Settings) -> sa.Engine:
    made: sa.Engine = sa.create_engine(records_url(settings), **engine_arguments(settings))
    if made.dialect.name == "sqlite":
        sa.event.listen(made, "connect", _set_up_sqlite)
        made = OneWriterEngine(made)
    else:
        sa.event.listen(made, "do_connect", _connect_bounded)
        sa.event.listen(made, "connect", _set_up_postgres)
    renew_read_only(made)
    give_clock(made)
    give_news(made)
    return made


def records_url(settings: Settings) -> sa.URL:
    """The URL of the records. Raises ReshardError if the password's file cannot be read."""
    if settings.database_url is None:
        if settings.database_password_file is not None:
            raise ReshardError(
                "database_password_file is set, but database_url is not; set database_url to a Postgres, or leave "
                "both out to keep the records in the state folder"
            )
        file = settings.state / "records.sqlite"
        return sa.URL.create("sqlite", database=str(file.absolute()))
    url = sa.make_url(settings.database_url.get_secret_value())
    url = url.set(drivername="postgresql+psycopg")
    if settings.database_password_file is None:
        return url
    return url.set(password=_password(settings.database_password_file))


def _password(file: Path) -> str:
    """The file's one line, without the line break that a mounted secret often has."""
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReshardError(
            f"the password file {str(file)!r} (database_password_file) cannot be read: {error}; mount it where this "
            "user may read it, or put the password into database_url"
        ) from error


def engine_arguments(settings: Settings) -> dict[str, Any]:
    """Keyword arguments for ``create_engine``."""
    if settings.database_url is not None:
        return {
            "pool_pre_ping": True,
            "pool_size": 10,
            "max_overflow": 10,
            "pool_timeout": ANSWER_SECONDS,
            "hide_parameters": True,
            "connect_args": CONNECT_ARGUMENTS,
        }
    return {
        "hide_parameters": True,
        "module": sqlite_module(),
        "connect_args": {"timeout": BUSY_MILLISECONDS / 1000},
    }


def sqlite_module() -> Any:
    """Python's own SQLite if it is new enough, else that of ``pysqlite3``."""
    import sqlite3

    if sqlite3.sqlite_version_info >= LEAST_SQLITE:
        return sqlite3
    try:
        from pysqlite3 import dbapi2
    except ImportError:
        raise MissingPackageError(
            f"this Python has SQLite {sqlite3.sqlite_version}, but 3.42 or newer is needed; install pysqlite3-binary, "
            "or set database_url to a Postgres"
        ) from None
    return dbapi2


def _set_up_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    _write_ahead(cursor)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Switches the file to a write-ahead log.

    Of two connections that switch at once, SQLite refuses one without waiting, so the wait is here.
    """
    end = time.monotonic() + BUSY_MILLISECONDS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite_module().OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.01)


def _connect_bounded(_: Any, __: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    return BoundedConnection.connect(*arguments, **named)


def _set_up_postgres(connection: Any, _: Any) -> None:
    connection.autocommit = True
    connection.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MILLISECONDS}")
    connection.execute(f"SET statement_timeout = {int(ANSWER_SECONDS * 1000)}")
    connection.autocommit = False


def shown(engine: sa.Engine) -> str:
    """The database's URL without its password."""
    return engine.url.render_as_string(hide_password=True)


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
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(SCRIPTS))
        current = MigrationContext.configure(connection).get_current_revision()
        pending = _pending(config, current)
        if pending and not apply:
            raise PendingError(", ".join(pending))
        if current is None:
            # Tables without a number are not this program's, or are of a version that was never published: nothing is known of them.
            if sa.inspect(connection).has_table("conversions"):
                raise LackingError("its tables have no version number")
            METADATA.create_all(connection)
            command.stamp(config, "head")
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


def _pending(config: Config, current: str | None) -> list[str]:
    """Numbers of the pending steps, in order; none for records of a newer version."""
    steps = ScriptDirectory.from_config(config).walk_revisions()
    numbers = [step.revision for step in steps][::-1]
    if current is None:
        return numbers
    return numbers[numbers.index(current) + 1 :] if current in numbers else []


def _refuse_lacking(connection: sa.Connection, needed: sa.MetaData) -> None:
    """Raises LackingError if a table or one of its columns is missing."""
    existing = sa.inspect(connection)
    for table in needed.sorted_tables:
        if not existing.has_table(table.name):
            raise LackingError(f"there is no table {table.name!r}")
        there = {column["name"] for column in existing.get_columns(table.name)}
        if lacking := sorted({column.name for column in table.c} - there):
            raise LackingError(f"the table {table.name!r} has no {', '.join(lacking)}")
