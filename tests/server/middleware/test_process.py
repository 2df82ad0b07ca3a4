"""The process: how it is started, what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import uvicorn
from reshard_server.auth.limits import Drain
from reshard_server.db.conversions import claims
from reshard_server.db.database import open_database
from reshard_server.serve import DrainingServer, address_of, announcement, listen
from reshard_server.settings import Settings

from reshard.cli.app import run as run_command
from reshard.errors import ReshardError
from tests.server import live as live_module
from tests.server.claimed import claimed
from tests.server.forked import Forked
from tests.server.live import PATIENCE_SECONDS, environment, live
from tests.server.tokens import bearer
from tests.server.waiting import until

URL = "/v1/conversions"
ONE = {"source": "data/a", "target": "data/b"}
IDLE = "tests.server.idle"
SERVICE = (Path(__file__).parents[3] / "docs" / "reference" / "service" / "settings.md").read_text()
SETTINGS = SERVICE.partition("| setting | default | what it is |")[2].partition("\n\n")[0]


def test_streams_are_told_and_the_process_ends_with_0(tmp_path: Path) -> None:
    with live(tmp_path, module=IDLE, streams=2) as server, server.client() as client:
        path = f"{URL}/{client.post(URL, json=ONE).json()['id']}"
        with client.stream("GET", f"{path}/events") as one, client.stream("GET", f"{path}/events"):
            lines = one.iter_lines()
            heard = [next(lines) for _ in range(4)]
            third = client.get(f"{path}/events")
            server.process.send_signal(signal.SIGTERM)
            heard += list(lines)
        assert (third.status_code, third.headers["Retry-After"]) == (429, "5")
        assert third.json()["detail"] == (
            "2 streams are open, the most that this server allows for all tokens together (its setting streams); try again "
            "later, or poll with If-None-Match"
        )
        assert heard[0] == "retry: 2000"
        assert heard[2:4] == ["id: 1", "event: conversion"]
        assert "event: draining" in heard
        assert server.process.wait(PATIENCE_SECONDS) == 0
        assert any(line["message"] == "draining" for line in server.lines())


def test_a_signal_is_only_noted_so_that_it_may_come_while_the_log_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    server = DrainingServer(uvicorn.Config("no:app"), Drain(), 30, lambda: None)
    server.handle_exit(signal.SIGTERM, None)
    assert (caplog.messages, server.should_exit) == ([], False)
    asyncio.run(server.on_tick(1))
    assert (caplog.messages, server.should_exit) == (["draining"], True)
    asyncio.run(server.on_tick(2))
    assert caplog.messages == ["draining"]


def test_many_watch_and_all_see_the_end_without_a_thread_each(tmp_path: Path) -> None:
    with live(tmp_path, module=IDLE, streams=100) as server, server.client() as client:
        new = client.post(URL, json=ONE).json()["id"]

        def watch() -> str:
            with server.client() as own, own.stream("GET", f"{URL}/{new}/events") as stream:
                text = "".join(stream.iter_text())
                return [x for x in text.splitlines() if x.startswith("event:")][-1]

        before = _threads(server.process.pid)
        with ThreadPoolExecutor(40) as pool:
            try:
                watchers = [pool.submit(watch) for _ in range(40)]
                until(lambda: "reshard_streams_open 40.0" in client.get("/metrics").text)
                threads = _threads(server.process.pid)
            finally:
                client.post(f"{URL}/{new}:cancel")
            ends = [watcher.result(PATIENCE_SECONDS) for watcher in watchers]
        assert threads < before + 45  # the pool of requests, and no more
        assert ends == ["event: end"] * 40
        until(lambda: "reshard_streams_open 0.0" in client.get("/metrics").text)


def test_a_stream_goes_on_behind_what_was_seen(tmp_path: Path) -> None:
    with live(tmp_path, module=IDLE) as server, server.client() as client:
        new = client.post(URL, json=ONE).json()["id"]
        database = open_database(Settings(state=tmp_path / "state"))
        headers = {"Last-Event-ID": "1"}
        with client.stream("GET", f"{URL}/{new}/events", headers=headers) as stream:
            lines = (x for x in stream.iter_lines() if x and not x.startswith(":"))
            assert next(lines) == "retry: 2000"
            claim = claimed(database, new)
            assert next(lines) == "id: 2"
            assert (next(lines), json.loads(next(lines)[5:])["state"]) == (
                "event: conversion",
                "running",
            )
            claims.finish(database, claim, "failed", error={"title": "x"})
            assert [next(lines) for _ in range(2)] == ["id: 3", "event: end"]
            assert json.loads(next(lines)[5:])["error"] == {"title": "x"}
            assert list(lines) == []
        database.dispose()


def test_an_open_request_ends_before_the_process_does(tmp_path: Path) -> None:
    with live(tmp_path, module=IDLE, drain_seconds=300) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps(ONE).encode()
        head = (
            f"POST {URL} HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer('ann')['Authorization']}\r\n"
        )
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head += "Expect: 100-continue\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(head.encode())
            assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it is open
            connection.sendall(body[:5])
            server.process.send_signal(signal.SIGTERM)
            until(lambda: _get(f"{server.url}/readyz").status_code == 503)
            connection.sendall(body[5:])
            answer = b""
            while b"}" not in answer:
                part = connection.recv(65536)
                assert part, answer
                answer += part
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"this server is ending and accepts no new work" in answer
        assert b"retry-after: 5" in answer
        assert server.process.wait(PATIENCE_SECONDS) == 0


def test_a_request_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    with live(tmp_path, module=IDLE, drain_seconds=1) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            time.sleep(0.5)
            assert server.end() == 0


def test_requests_of_a_token_are_counted(tmp_path: Path) -> None:
    """Half a minute is left for the requests of each, before another is allowed."""
    with live(tmp_path, module=IDLE, requests_per_minute=2) as server:
        with server.client() as ann, server.client("bob") as bob:
            answers = [ann.get(URL) for _ in range(3)]
            assert [a.status_code for a in answers] == [200, 200, 429]
            seconds = int(answers[-1].headers["Retry-After"])
            assert 0 < seconds <= 30
            assert (
                answers[-1]
                .json()["detail"]
                .startswith(
                    f"more than 2 requests in a minute; wait {seconds} s, and send fewer requests"
                )
            )
            assert bob.get(URL).status_code == 200
        wrong = [
            _get(server.url + URL, {"Authorization": f"Bearer {i}"}).status_code for i in range(3)
        ]
        assert wrong == [401, 401, 429]


def test_help_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", "--help"]) == 0
    assert "Needs the packages of the extra 'server'." in " ".join(capsys.readouterr().out.split())


def test_every_setting_is_listed_as_the_page_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", "--list-settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [
        tuple(row)
        for row in re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", SETTINGS, re.MULTILINE)
    ]
    assert lines == [
        line
        for name, default, description in rows
        for line in (
            f"{name} (RESHARD_{name.upper()}, default: {default})",
            f"    {description}",
        )
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no token, so nobody could send requests"),
        (["--insecure", "--host", "10.0.0.1"], "insecure is allowed on a loopback address only"),
        (["--insecure", "--root", "data=/nowhere"], "the root 'data' is '/nowhere', which is not a folder"),
        (
            ["--insecure", "--root", "data=."],
            "reshard-state' is in the root 'data', where clients may read and write; name a folder elsewhere",
        ),
        (["--settings", "none.toml"], "the settings file 'none.toml' cannot be used"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_exit_code_1(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["serve", *arguments]) == 1
    assert words in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--root", "data"], "--root 'data': expected NAME=PATH"),
        (["--root", "a=/", "--root", "a=/tmp"], "--root 'a=/tmp': the root 'a' is named twice"),
        (
            ["--scope", "read"],
            "--scope, --read, --write, --expires and --s3 belong to --make-token",
        ),
        (["--make-token", "x", "--scope", "all"], "the token 'x' cannot be made: scopes"),
    ],
)
def test_wrong_words_are_usage_errors(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run_command(["serve", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_variable_that_is_no_setting_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "environment", lambda: {**environment(), "RESHARD_PROT": "1"})
    with live(tmp_path, module=IDLE) as server:
        assert (
            "the variable RESHARD_PROT is ignored: there is no such setting"
            in server.log.read_text()
        )


def test_the_state_folder_is_its_owners_alone(tmp_path: Path) -> None:
    with live(tmp_path, module=IDLE):
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_state_that_is_taken_is_told_in_one_line_with_exit_code_1(tmp_path: Path) -> None:
    with live(tmp_path) as first:
        flags = ["--insecure", "--port", "0", "--state", str(tmp_path / "state")]
        said = tmp_path / "said"
        second = Forked(["reshard", "serve", *flags], environment(), tmp_path, said, said)
        assert second.wait(300) == 1
    lines = said.read_text().splitlines()
    assert not [line for line in lines if "listens" in line]  # no request was ever answered
    assert not [line for line in lines if "Traceback" in line or "startup" in line]
    assert " ".join(lines).endswith(
        f"error: another server (process {first.process.pid}) works on the state folder '{tmp_path / 'state'}'; end "
        "it, give this one its own folder (--state), or let both share a Postgres (database_url)"
    )


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as taken:
        address = address_of(taken)
        port = int(address.rpartition(":")[2])
        with pytest.raises(ReshardError) as raised:
            listen("127.0.0.1", port)
    assert str(raised.value) == (
        f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another --host or --port, "
        "or end the process that uses it"
    )


def test_without_the_packages_their_names_are_told(tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, sys\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'uvicorn' else find(name, *a)\n"
        "from reshard.cli import main\nsys.argv = ['reshard', 'serve', '--insecure']\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False, capture_output=True, text=True, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "reshard serve needs uvicorn, which this Python lacks; run pip install '.[server]' in"
        in " ".join(done.stderr.split())
    )


def test_a_token_that_was_made_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", "--make-token", "ci", "--scope", "read", "--read", "data"]) == 0
    told = capsys.readouterr()
    (kept,) = tomllib.loads(told.out)["tokens"]
    token = told.err.split()[-1]
    assert (kept["name"], kept["scopes"], kept["read"], kept["write"]) == (
        "ci",
        ["read"],
        ["data"],
        [],
    )
    assert token.startswith("rsh_") and token not in told.out
    (tmp_path / "tokens.toml").write_text(told.out)
    with live(tmp_path, module=IDLE, tokens_file=str(tmp_path / "tokens.toml")) as server:
        headers = {"Authorization": f"Bearer {token}"}
        assert _get(server.url + URL, headers).status_code == 200
        refused = httpx.post(server.url + URL, headers=headers, json=ONE, timeout=PATIENCE_SECONDS)
        assert refused.status_code == 403


def _get(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.get(url, headers=headers, timeout=PATIENCE_SECONDS)


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.parametrize(
    ("public_url", "pages"),
    [
        (None, "http://127.0.0.1:8080/"),
        ("https://reshard.example", "https://reshard.example/"),
    ],
)
def test_it_tells_where_its_pages_are(tmp_path: Path, public_url: str | None, pages: str) -> None:
    settings = Settings(insecure=True, public_url=public_url, roots={"data": tmp_path})
    assert announcement(settings, "http://127.0.0.1:8080").splitlines() == [
        "reshard listens on http://127.0.0.1:8080",
        f"pages for people: {pages}",
        "roots:",
        f"  data = {tmp_path}",
        "try: curl http://127.0.0.1:8080/v1/conversions",
    ]
