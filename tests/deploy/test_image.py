"""The Dockerfile: linted, its sources there, its versions locked, and what it starts works without root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packaging.utils import canonicalize_name
from reshard_server.settings import Settings, load_settings

import reshard
from tests.deploy.deployed import USER, Installation, Place, as_user, extras, needed, run, started
from tests.deploy.documents import (
    DEPLOY,
    ROOT,
    image_environment,
    instructions,
    most_bytes,
    parse_size,
)
from tests.server.tokens import bearer, token_documents

pytestmark = pytest.mark.xdist_group("deploy")


def argument(word: str) -> str:
    """What the last instruction of this name has."""
    return [rest for found, rest in instructions() if found == word][-1]


def test_hadolint_finds_nothing() -> None:
    assert run(_tool("hadolint"), "--failure-threshold", "style", DEPLOY / "Dockerfile") == ""


def test_hadolint_can_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN pip install reshard\nUSER root\n")
    done = subprocess.run(
        [_tool("hadolint"), tmp_path / "Dockerfile"], capture_output=True, text=True
    )
    assert {"DL3006", "DL3013", "DL3002"} <= set(re.findall(r"DL\d+", done.stdout))


def _tool(name: str) -> str:
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ["PATH"]]))
    assert found, f"{name} is missing; make install puts it into .venv"
    return found


def test_what_is_copied_is_there_and_not_ignored() -> None:
    copied = [
        rest.split()[:-1]
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
    ]
    sources = {source for words in copied for source in words}
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert sources == {line[1:] for line in ignored if line.startswith("!")}
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_nothing_else_is_needed_to_build_the_wheel(image: Installation) -> None:
    """The wheel has every module and whatever lies beside them."""
    site = next(image.folder.glob("lib/python*/site-packages"))
    places = {"reshard": ROOT, "reshard_server": ROOT / "server"}
    ours = {
        file.relative_to(place)
        for package, place in places.items()
        for file in (place / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert len(ours) > 200
    assert [str(file) for file in sorted(ours) if not (site / file).is_file()] == []


def test_it_has_what_the_service_buckets_deltas_and_identities_need() -> None:
    assert extras() == ["server", "cloud", "delta", "identity"]
    assert {"fastapi", "obstore", "blake3", "xxhash", "cryptography"} <= set(needed())
    assert any("[${EXTRAS}]" in rest for word, rest in instructions() if word == "RUN")


def test_every_version_is_locked() -> None:
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in locked if "==" in line}
    assert len(needed()) > 30
    assert set(needed()) | {"hatchling"} <= pinned


def test_the_image_is_of_the_version_that_it_says() -> None:
    assert f'image.version="{reshard.__version__}"' in argument("LABEL")
    named = [file for file in DEPLOY.rglob("*") if file.suffix in ("", ".yaml") and file.is_file()]
    told = {v for file in named for v in re.findall(r"reshard-server:([\d.]+)", file.read_text())}
    assert told == {reshard.__version__}


def test_its_variables_are_settings() -> None:
    ours = [name for name in image_environment() if name.startswith("RESHARD_")]
    fields = {name.removeprefix("RESHARD_").lower().partition("__")[0] for name in ours}
    assert fields == {"host", "port", "state", "roots"} <= set(Settings.model_fields)


def test_the_readme_gives_it_enough_memory_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = (
        x
        for x in (DEPLOY / "README.md").read_text().split("$ ")
        if x.startswith("docker run --detach")
    )
    for name, value in re.findall(r"--env (RESHARD_\w+)=(\S+)", command):
        monkeypatch.setenv(name, value)
    settings = load_settings({}, None)
    (memory,) = re.findall(r"--memory (\d+g)", command)
    assert most_bytes(settings) <= parse_size(memory.upper())
    (seconds,) = re.findall(r"--stop-timeout (\d+)", command)
    assert int(seconds) >= settings.drain_seconds + 15


def test_it_serves_as_a_user_without_rights_and_ends_in_order(
    image: Installation, at: Place
) -> None:
    assert argument("USER") == f"{USER}:{USER}"
    variables = image_environment()
    state, data = variables["RESHARD_STATE"], variables["RESHARD_ROOTS__DATA"]
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    reshard.save(at.at(f"{data}/run/1"), {"kernel": weights})
    at.make_writable(state, data)
    kept = {k: v for k, v in variables.items() if k != "PATH"}
    translated = {k: str(at.at(v)) if v.startswith("/") else v for k, v in kept.items()}
    tokens = {"RESHARD_TOKENS": json.dumps(token_documents())}
    command = [
        image.folder / "bin" / json.loads(argument("ENTRYPOINT"))[0],
        *json.loads(argument("CMD")),
    ]
    with started(at, command, {**translated, **tokens}) as server, server.client() as client:
        assert (
            client.get("/v1/conversions", headers={"Authorization": "Bearer none"}).status_code
            == 401
        )
        asked = {"source": "data/run/1", "target": "data/served", "mesh": "x=4", "layout": None}
        made = client.post(
            "/v1/conversions", json={**asked, "max_memory": "64MiB"}, headers=bearer("ann")
        )
        assert made.status_code == 202, made.text
        with client.stream("GET", f"{made.headers['Location']}/events", timeout=120) as events:
            assert [x for x in events.iter_lines() if x.startswith("event:")][-1] == "event: end"
        ended = client.get(made.headers["Location"]).json()
        assert ended["state"] == "succeeded", ended
        assert _health(image, server.url) == 0
        assert server.end(120) == 0
        assert _health(image, server.url) != 0
    np.testing.assert_array_equal(reshard.restore(at.at(f"{data}/served"))["kernel"], weights)
    written = {path.relative_to(at.folder).parts[0] for path in at.folder.iterdir()}
    assert written == {"log", state.split("/")[1], data.split("/")[1]}


def _health(image: Installation, url: str) -> int:
    """What the HEALTHCHECK says of a server at this address."""
    command = json.loads(argument("HEALTHCHECK").partition("CMD ")[2])
    environment = {"RESHARD_PORT": url.rpartition(":")[2]}
    words = as_user([image.folder / "bin" / command[0], *command[1:]])
    return subprocess.run(words, env=environment, timeout=60, capture_output=True).returncode
