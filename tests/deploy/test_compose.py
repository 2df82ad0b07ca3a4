"""The compose file: valid, its secrets and settings real, and two replicas of it run on a real Postgres."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import psycopg
import pytest
from compose_spec import PyCompose
from reshard_server.settings import Settings, load_settings

import reshard
from tests.deploy.deployed import Installation, Place, started, tokens_toml
from tests.deploy.documents import (
    DEPLOY,
    compose,
    image_environment,
    instructions,
    most_bytes,
    parse_size,
)
from tests.server.postgres import Postgres, start_postgres

pytestmark = pytest.mark.xdist_group("deploy")
SERVER = compose()["services"]["server"]
VARIABLES: dict[str, str] = SERVER["environment"]


def test_it_is_a_compose_file() -> None:
    parsed = PyCompose.from_yaml((DEPLOY / "compose.yaml").read_text())
    parsed.validate()
    assert set(parsed.service_names()) == {"server", "database"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    read_only: true", "    readonly: true"),
        ("[database_password, tokens]", "[database_password, token]"),
    ],
)
def test_a_slip_is_found(before: str, after: str) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert before in text
    with pytest.raises(ValueError):
        PyCompose.from_yaml(text.replace(before, after)).validate()


def test_every_volume_is_declared() -> None:
    services = compose()["services"].values()
    used = {volume["source"] for service in services for volume in service["volumes"]}
    assert used == set(compose()["volumes"])


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """As a server of this file has them."""
    for name, value in {**image_environment(), **VARIABLES}.items():
        if name.startswith("RESHARD_"):
            monkeypatch.setenv(name, value)
    return load_settings({}, None)


def test_every_variable_is_a_setting(settings: Settings) -> None:
    names = {name.removeprefix("RESHARD_").lower() for name in VARIABLES}
    assert names <= set(Settings.model_fields)
    assert settings.running == int(VARIABLES["RESHARD_RUNNING"])


def test_memory_and_time_suffice(settings: Settings) -> None:
    limits = SERVER["deploy"]["resources"]["limits"]
    assert most_bytes(settings) <= parse_size(limits["memory"])
    assert int(SERVER["stop_grace_period"].removesuffix("s")) >= settings.drain_seconds + 15


def test_paths_agree(settings: Settings) -> None:
    secrets = {f"/run/secrets/{name}" for name in SERVER["secrets"]}
    assert {str(settings.tokens_file), str(settings.database_password_file)} == secrets
    assert [str(p) for p in settings.roots.values()] == [v["target"] for v in SERVER["volumes"]]
    (tmpfs,) = SERVER["tmpfs"]
    assert tmpfs.partition(":")[0] == str(settings.state)
    (exposed,) = (rest for word, rest in instructions() if word == "EXPOSE")
    assert SERVER["ports"][0]["target"] == settings.port == int(exposed)
    (build,) = (x for x in (DEPLOY / "compose.yaml").read_text().splitlines() if "dockerfile:" in x)
    assert (DEPLOY / SERVER["build"]["context"] / build.split()[-1]).is_file()


def test_the_database_is_the_one_that_is_asked(settings: Settings) -> None:
    database = compose()["services"]["database"]
    assert settings.database_url
    url = re.fullmatch(r"postgresql://(\w+)@(\w+)/(\w+)", settings.database_url.get_secret_value())
    made = database["environment"]
    assert url
    assert url.groups() == (made["POSTGRES_USER"], "database", made["POSTGRES_DB"])
    assert made["POSTGRES_PASSWORD_FILE"] == str(settings.database_password_file)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    found = start_postgres()
    yield found
    found.end()


def protected(postgres: Postgres) -> str:
    """The URL of a database whose user has to tell a password, without that."""
    url = postgres.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE service LOGIN PASSWORD 'from the file'")
        connection.execute("ALTER SCHEMA public OWNER TO service")
        rules = postgres.folder / "data" / "pg_hba.conf"
        rules.write_text("local all service scram-sha-256\n" + rules.read_text())
        connection.execute("SELECT pg_reload_conf()")
    asked = url.replace("//reshard@", "//service@")
    deadline = time.monotonic() + 60
    while _lets_in(asked):  # until the rules are read
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return asked


def _lets_in(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError as error:
        assert "password" in str(error)
        return False
    return True


def test_two_replicas_share_the_work(image: Installation, at: Place, postgres: Postgres) -> None:
    url = protected(postgres)
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    reshard.save(at.at("/data/run/1"), {"kernel": weights})
    at.make_writable("/data", "/var/lib/reshard", "/two")
    at.write("/run/secrets/database_password", "from the file\n")
    at.write("/run/secrets/tokens", tokens_toml())
    ours = {**image_environment(), **VARIABLES, "RESHARD_DATABASE_URL": url}
    variables = {k: _here(at, k, v) for k, v in ours.items() if k != "PATH"}
    command = [image.reshard, "serve"]
    with ExitStack() as stack:
        one = stack.enter_context(started(at, command, variables, "one.log"))
        state = {"RESHARD_STATE": str(at.at("/two"))}
        two = stack.enter_context(started(at, command, {**variables, **state}, "two.log"))
        made = stack.enter_context(one.client()).post("/v1/conversions", json=_asked("data/served"))
        assert made.status_code == 202, made.text
        with two.client() as client:
            assert _ended(client, made.headers["Location"])["state"] == "succeeded"
            assert one.end(120) == 0
            again = client.post("/v1/conversions", json=_asked("data/again"))
            assert _ended(client, again.headers["Location"])["state"] == "succeeded"
        assert "from the file" not in one.log.read_text() + two.log.read_text()
        assert two.end(120) == 0
    np.testing.assert_array_equal(reshard.restore(at.at("/data/again"))["kernel"], weights)


def _here(at: Place, name: str, value: str) -> str:
    return str(at.at(value)) if name.startswith("RESHARD_") and value.startswith("/") else value


def _asked(target: str) -> dict[str, Any]:
    return {"source": "data/run/1", "target": target, "mesh": "x=4", "max_memory": "64MiB"}


def _ended(client: Any, path: str) -> dict[str, Any]:
    with client.stream("GET", f"{path}/events", timeout=120) as events:
        assert [x for x in events.iter_lines() if x.startswith("event:")][-1] == "event: end"
    return client.get(path).json()
