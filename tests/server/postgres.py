"""A real PostgreSQL: made in a temporary folder, on a unix socket, as a user that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psycopg

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")


@dataclass(frozen=True)
class Postgres:
    """A running server.

    Attributes:
        folder: its data and its socket.
    """

    folder: Path
    process: subprocess.Popen[bytes]

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://reshard@/{database}?host={self.folder}"

    def restarted(self) -> Postgres:
        """The same server with the same data, after all connections were cut."""
        self.process.send_signal(2)  # SIGINT: fast shutdown
        self.process.wait(120)
        return _launched(self.folder)

    def end(self) -> None:
        """Ends at once; its data is thrown away."""
        self.process.send_signal(3)  # SIGQUIT: immediate shutdown
        self.process.wait(120)
        shutil.rmtree(self.folder)


def start_postgres() -> Postgres:
    """Starts a PostgreSQL server; an error names the missing program."""
    folder = Path(tempfile.mkdtemp(prefix="reshard-pg-"))
    account = _account()
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    run_as = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid}
    data, tools = folder / "data", _tools()
    subprocess.run(
        [tools / "initdb", "-D", data, "-U", "reshard", "-A", "trust", "-E", "UTF8", "--no-sync"],
        check=True, capture_output=True, timeout=300, cwd=folder, **run_as,
    )  # fmt: skip
    return _launched(folder)


def _launched(folder: Path) -> Postgres:
    """A server on the data of a folder, once it answers."""
    account, data, tools = _account(), folder / "data", _tools()
    run_as = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid}
    options = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
    process = subprocess.Popen(
        [tools / "postgres", "-D", data, *(f"-c{k}={v}" for k, v in options.items())],
        stdout=subprocess.DEVNULL, stderr=(folder / "log").open("ab"), cwd=folder, **run_as,
    )  # fmt: skip
    started = Postgres(folder, process)
    _await(started)
    return started


def _await(started: Postgres) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(started._url("postgres")).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline or started.process.poll() is not None:
                raise RuntimeError((started.folder / "log").read_text()) from None
            time.sleep(0.05)
        else:
            return


def _account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def _tools() -> Path:
    found = [p for place in _PLACES for p in Path("/").glob(place[1:]) if (p / "initdb").exists()]
    beside = shutil.which("initdb")
    if beside:
        found.append(Path(beside).parent)
    if not found:
        raise RuntimeError(
            "no PostgreSQL here; install it (Debian: postgresql) to run the server's tests"
        )
    return max(found)
