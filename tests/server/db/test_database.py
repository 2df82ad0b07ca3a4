"""The place of the records, the password of a Postgres in a file, and records of another version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from reshard_server.db.database import records_url
from reshard_server.settings import Settings

from reshard.errors import ReshardError

URL = SecretStr("postgresql://reshard@db:5433/records?sslmode=require")


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(state=folder, **more)


def test_the_password_comes_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s p@ss/word\n")
    url = records_url(settings(tmp_path, database_url=URL, database_password_file=file))
    assert (url.password, url.username, url.port, url.database) == (
        "s p@ss/word", "reshard", 5433, "records",
    )  # fmt: skip
    assert dict(url.query) == {"sslmode": "require"}
    assert "s p@ss" not in url.render_as_string(hide_password=True)


def test_without_a_file_the_url_is_taken_as_it_is(tmp_path: Path) -> None:
    assert records_url(settings(tmp_path, database_url=URL)).password is None
    assert records_url(settings(tmp_path)).database == str(tmp_path / "records.sqlite")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    with pytest.raises(ReshardError) as raised:
        records_url(settings(tmp_path, database_url=URL, database_password_file=missing))
    assert str(raised.value).startswith(
        f"the password file {str(missing)!r} (database_password_file) cannot be read: "
    )
    assert str(raised.value).endswith(
        "mount it where this user may read it, or put the password into database_url"
    )


def test_a_file_for_no_database(tmp_path: Path) -> None:
    with pytest.raises(ReshardError) as raised:
        records_url(settings(tmp_path, database_password_file=tmp_path / "password"))
    assert str(raised.value) == (
        "database_password_file is set, but database_url is not; set database_url to a Postgres, or leave both out to "
        "keep the records in the state folder"
    )
