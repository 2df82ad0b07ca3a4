"""Records of other versions: migrated, used as they are, or refused in words."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from reshard_server.db import database as migrating
from reshard_server.db.database import migrate, open_database, sqlite_module
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import LAYOUT
from reshard_server.db.tables import METADATA
from reshard_server.settings import Settings

from reshard.cli.app import run
from reshard.errors import StorageError
from tests.server.live import live
from tests.server.postgres import Postgres
from tests.server.threads import run_together

HEAD = "0004"
STEP = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"


def upgrade():
    op.add_column("layouts", sa.Column("colour", sa.Text))
    {then}
"""
"""A step as the next version may bring it."""


@pytest.fixture(params=["sqlite", "postgres"])
def chosen(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres
) -> Iterator[dict[str, Any]]:
    """Settings of an empty database of each kind."""
    url = postgres.new_database() if request.param == "postgres" else None
    yield {"state": tmp_path / "state", "database_url": url}


@pytest.fixture
def old(chosen: dict[str, Any]) -> dict[str, Any]:
    """Settings of records that have the tables of this version, for which ``next_version`` has a step."""
    opened(chosen).dispose()
    return chosen


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the code one more step, which ends with a statement."""

    def add(then: str = "pass") -> None:
        scripts = tmp_path / "migrations"
        shutil.copytree(migrating.SCRIPTS, scripts, dirs_exist_ok=True)
        (scripts / "versions" / "v0005_colour.py").write_text(STEP.format(then=then))
        monkeypatch.setattr(migrating, "SCRIPTS", scripts)

    return add


def opened(chosen: dict[str, Any], **more: Any) -> sa.Engine:
    chosen["state"].mkdir(exist_ok=True)
    return open_database(Settings(**chosen, **more))


def version(db: sa.Engine) -> str | None:
    with db.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def differences(db: sa.Engine) -> list[Any]:
    with db.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), METADATA)


def test_new_records_have_the_tables_of_the_code(chosen: dict[str, Any]) -> None:
    db = opened(chosen)
    assert (version(db), differences(db)) == (HEAD, [])
    assert migrate(db) == []
    db.dispose()


def columns(db: sa.Engine, table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(db).get_columns(table)}


def test_older_records_are_migrated(old: dict[str, Any], next_version: Callable[..., None]) -> None:
    next_version()
    db = opened(old)
    assert (version(db), "colour" in columns(db, "layouts")) == ("0005", True)
    assert migrate(db) == []
    db.dispose()


def test_earlier_records_get_the_tables_of_deliveries_and_views(chosen: dict[str, Any]) -> None:
    db = opened(chosen)
    with db.begin() as connection:
        for table in ("deliveries", "views"):
            connection.execute(sa.text(f"DROP TABLE {table}"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0002'"))
    assert migrate(db) == ["0003", HEAD]
    assert (version(db), differences(db)) == (HEAD, [])
    db.dispose()


def test_a_failing_step_leaves_the_records_as_they_were(
    old: dict[str, Any], next_version: Callable[..., None]
) -> None:
    next_version("raise RuntimeError('killed here')")
    with pytest.raises(RuntimeError, match="killed here"):
        opened(old)
    engine = opened_raw(old)
    assert (version(engine), "colour" in columns(engine, "layouts")) == (HEAD, False)
    engine.dispose()


def opened_raw(chosen: dict[str, Any]) -> sa.Engine:
    url = chosen["database_url"]
    if url:
        return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    return sa.create_engine(f"sqlite:///{chosen['state'] / 'records.sqlite'}")


def test_of_two_processes_one_makes_the_tables(chosen: dict[str, Any]) -> None:
    chosen["state"].mkdir(exist_ok=True)
    engines = [opened_raw_engine(chosen) for _ in range(2)]
    done = run_together([partial(migrate, engine) for engine in engines])
    assert sorted(done) == [[], ["0001", "0002", "0003", HEAD]]
    for engine in engines:
        engine.dispose()


def test_records_that_another_connection_writes_are_opened_once_it_has_ended(
    tmp_path: Path,
) -> None:
    opened({"state": tmp_path, "database_url": None}).dispose()
    writer = sqlite_module().connect(
        tmp_path / "records.sqlite", isolation_level=None, check_same_thread=False
    )
    writer.execute("BEGIN IMMEDIATE")
    end = threading.Timer(0.3, writer.rollback)
    end.start()
    db = opened({"state": tmp_path, "database_url": None})
    assert version(db) == HEAD
    db.dispose()
    end.join()
    writer.close()


def opened_raw_engine(chosen: dict[str, Any]) -> sa.Engine:
    """An engine as servers have it, with nothing migrated yet."""
    from reshard_server.db.database import _engine

    return _engine(Settings(**chosen))


def test_records_of_a_newer_version_are_used_as_they_are(chosen: dict[str, Any]) -> None:
    db = opened(chosen)
    with db.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(sa.text("ALTER TABLE layouts ADD COLUMN colour TEXT DEFAULT 'red'"))
    db.dispose()
    db = opened(chosen)
    versions.put(
        db, LAYOUT, "serving", {"rules": []}, token="ann", is_admin=False, expected=lambda _: True
    )
    assert version(db) == "9999"
    db.dispose()


@pytest.mark.parametrize(
    ("statement", "lacking"),
    [
        ("ALTER TABLE conversions DROP COLUMN read_bytes", "the table 'conversions' has no read_bytes"),
        ("DROP TABLE sessions", "there is no table 'sessions'"),
        ("DROP TABLE alembic_version", "its tables have no version number"),
    ],
)  # fmt: skip
def test_records_without_what_is_needed_are_refused(
    old: dict[str, Any], statement: str, lacking: str
) -> None:
    engine = opened_raw(old)
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    shown = engine.url.render_as_string(hide_password=True)
    engine.dispose()
    with pytest.raises(StorageError) as raised:
        opened(old)
    assert str(raised.value) == (
        f"the server's records ({shown}) were made by a version that this one cannot migrate from: {lacking}; run the version that "
        "made them, or start with an empty state folder or database"
    )


def test_pending_steps_that_may_not_be_done(
    old: dict[str, Any], next_version: Callable[..., None]
) -> None:
    next_version()
    with pytest.raises(StorageError) as raised:
        opened(old, migrate_at_start=False)
    assert str(raised.value).endswith(
        "are of an older version: the migrations 0005 are pending, and migrate_at_start is off; run 'reshard serve "
        "--migrate' with the same settings first"
    )
    opened(old).dispose()
    opened(old, migrate_at_start=False).dispose()


def test_the_command_migrates_and_serves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'state' / 'records.sqlite'}"
    (tmp_path / "state").mkdir()
    for said in (
        f"{url}: did the migrations 0001, 0002, 0003, {HEAD}\n",
        f"{url}: nothing to migrate\n",
    ):
        assert run(["serve", "--migrate", "--state", "state"]) == 0
        assert capsys.readouterr() == (said, "")


def test_the_command_waits_for_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live(tmp_path):
        assert run(["serve", "--migrate", "--state", str(tmp_path / "state")]) == 1
    assert capsys.readouterr().err.startswith("error: another server (process ")
