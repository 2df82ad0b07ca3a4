"""Records of other versions: migrated, used as they are, or refused in words."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from reshard_server.db import migrate as migrating
from reshard_server.db.conversions import conversions
from reshard_server.db.conversions.conversions import Filters
from reshard_server.db.database import open_database, sqlite_module
from reshard_server.db.migrate import migrate
from reshard_server.db.schedules import schedules
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import LAYOUT, MAP
from reshard_server.db.tables import METADATA
from reshard_server.settings import Settings

from reshard.errors import StorageError
from tests.server.db.old_records import load_postgres, load_sqlite, make_sources
from tests.server.live import environment, live
from tests.server.postgres import Postgres
from tests.server.threads import run_together

STEPS = Path(migrating.__file__).parent / "migrations" / "versions"
LATER = sorted(step.name[1:5] for step in STEPS.glob("v*.py"))[1:]
"""Numbers of the steps that records of 0.1.0 need."""
HEAD = LATER[-1]
ADDING = {"create_table", "create_index", "add_column"}


@pytest.fixture(params=["sqlite", "postgres"])
def chosen(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres
) -> Iterator[dict[str, Any]]:
    """Settings of an empty database of each kind."""
    url = postgres.new_database() if request.param == "postgres" else None
    yield {"state": tmp_path / "state", "database_url": url}


@pytest.fixture
def old(chosen: dict[str, Any]) -> dict[str, Any]:
    """Settings of records that 0.1.0 left."""
    if chosen["database_url"]:
        load_postgres(chosen["database_url"])
    else:
        load_sqlite(chosen["state"])
    return chosen


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


def test_old_records_get_a_number_and_the_tables_of_the_code(old: dict[str, Any]) -> None:
    db = opened(old)
    assert (version(db), differences(db)) == (HEAD, [])
    listed = conversions.page(db, Filters(), 100).conversions
    states = [one.state for one in listed]
    assert sorted(states) == sorted(["succeeded"] * 4 + ["failed", "running", "queued", "queued"])
    assert {stored.name for stored in schedules.page(db, None, 10, None)[0]} == {"nightly", "steps"}
    found = versions.get(db, LAYOUT, "serving")
    assert found is not None and found.version == 2
    assert versions.get(db, MAP, "serving") is None
    made = versions.put(db, MAP, "serving", {"map": []}, token="ann", is_admin=False, expected=lambda _: True)  # fmt: skip
    assert made[0].version == 1
    db.dispose()


def test_old_work_is_carried_out(old: dict[str, Any], tmp_path: Path) -> None:
    make_sources(tmp_path / "data")
    more = {} if old["database_url"] is None else {"database_url": old["database_url"]}
    with live(tmp_path, **more) as server, server.client("root") as client:
        for _ in range(3000):
            listed = client.get("/v1/conversions?page_size=200").json()["conversions"]
            if all(one["done"] for one in listed):
                break
            threading.Event().wait(0.1)
        ends = {one["state"] for one in listed if one["request"].get("target") != "data/failed"}
        assert ends == {"succeeded"}
        names = [one["name"] for one in client.get("/v1/schedules").json()["schedules"]]
        assert names == ["nightly", "steps"]
    for target in ("running", "q1", "q2", "queued"):
        assert (tmp_path / "data" / target / "_METADATA").exists(), target


def test_a_failing_step_leaves_the_records_as_they_were(
    old: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(migrating, "_refuse_lacking", _after(2, migrating._refuse_lacking, fail))
        with pytest.raises(RuntimeError, match="killed here"):
            opened(old)
    engine = opened_raw(old)
    assert version(engine) is None
    names = {index["name"] for index in sa.inspect(engine).get_indexes("conversions")}
    assert "conversions_by_schedule" not in names
    engine.dispose()


def opened_raw(chosen: dict[str, Any]) -> sa.Engine:
    url = chosen["database_url"]
    if url:
        return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    return sa.create_engine(f"sqlite:///{chosen['state'] / 'records.sqlite'}")


def _after(calls: int, real: Any, then: Any) -> Any:
    """``real`` for the first calls but the last of them, which is ``then``."""
    made = iter(range(1, calls + 1))

    def call(*args: Any) -> Any:
        return (then if next(made) == calls else real)(*args)

    return call


def test_of_two_processes_one_migrates(old: dict[str, Any]) -> None:
    engines = [opened_raw_engine(old) for _ in range(2)]
    done = run_together([partial(migrate, engine) for engine in engines])
    assert sorted(done) == [[], LATER]
    for engine in engines:
        engine.dispose()


def test_records_that_another_connection_writes_are_opened_once_it_has_ended(
    tmp_path: Path,
) -> None:
    load_sqlite(tmp_path)
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


def test_records_without_what_is_needed_are_refused(old: dict[str, Any]) -> None:
    engine = opened_raw(old)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE conversions DROP COLUMN read_bytes"))
    shown = engine.url.render_as_string(hide_password=True)
    engine.dispose()
    with pytest.raises(StorageError) as raised:
        opened(old)
    assert str(raised.value) == (
        f"the server's records ({shown}) were made by a version that this one cannot migrate from: the table 'conversions' "
        "has no read_bytes; run the version that made them, or start with an empty state folder or database"
    )


def test_pending_steps_that_may_not_be_done(old: dict[str, Any]) -> None:
    with pytest.raises(StorageError) as raised:
        opened(old, migrate_at_start=False)
    assert str(raised.value).endswith(
        f"are of an older version: the migrations {', '.join(LATER)} are pending, and migrate_at_start is off; run 'reshard serve "
        "--migrate' with the same settings first"
    )
    opened(old).dispose()
    opened(old, migrate_at_start=False).dispose()


def test_the_command_migrates_and_serves_nothing(tmp_path: Path) -> None:
    load_sqlite(tmp_path / "state")
    command = [sys.executable, "-m", "reshard", "serve", "--migrate", "--state", "state"]
    url = f"sqlite:///{tmp_path / 'state' / 'records.sqlite'}"
    for said in (f"{url}: did the migrations {', '.join(LATER)}\n", f"{url}: nothing to migrate\n"):
        run = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, said, "")


def test_the_command_waits_for_no_server(tmp_path: Path) -> None:
    with live(tmp_path):
        run = subprocess.run(
            [sys.executable, "-m", "reshard", "serve", "--migrate", "--state", "state"],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.startswith("error: another server (process ")


@pytest.mark.parametrize("step", sorted(STEPS.glob("v0*.py")), ids=lambda path: path.stem)
def test_steps_only_add(step: Path) -> None:
    """So that servers of the version before work on with the same records."""
    calls = [
        node
        for node in ast.walk(ast.parse(step.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "op"
    ]
    assert calls
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        assert call.func.attr in ADDING
        if call.func.attr == "add_column":
            words = {
                k.arg: ast.unparse(k.value) for c in call.args for k in getattr(c, "keywords", [])
            }
            assert words.get("nullable") != "False" or "server_default" in words
