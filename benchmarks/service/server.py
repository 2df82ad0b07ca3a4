"""A server process to be measured: ``reshard serve`` on a free port of the loopback address."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120.0
END_SECONDS = 60.0


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    process: subprocess.Popen[bytes]
    url: str

    def secret(self, token: str) -> str:
        """The bearer token with this name."""
        return f"secret-of-{token}"

    def processor_seconds(self) -> float:
        """What the server's own process took so far, without its children."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serve(
    folder: Path, tokens: list[str], running: int, database_url: str | None, **more: int
) -> Iterator[Served]:
    """A server with its state, its log and its root ``data`` in a folder; ``more`` are further settings."""
    log = folder / "log"
    settings = _settings(folder, tokens, running, database_url, more)
    command = [sys.executable, "-m", "reshard", "serve", "--port", "0", "--settings", settings]
    with log.open("wb") as stream:
        process = subprocess.Popen(list(map(str, command)), stdout=stream, stderr=stream)
    try:
        yield Served(process, _address(process, log))
    finally:
        process.terminate()
        process.wait(END_SECONDS)


def _settings(
    folder: Path, tokens: list[str], running: int, database_url: str | None, more: dict[str, int]
) -> Path:
    values: dict[str, str | int] = {"state": str(folder / "state"), **more}
    values |= {"running": running, "running_per_token": running}
    if database_url:
        values["database_url"] = database_url
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    for token in tokens:
        sha256 = hashlib.sha256(f"secret-of-{token}".encode()).hexdigest()
        lines += ["[[tokens]]", f'name = "{token}"', f'sha256 = "{sha256}"']
        lines += ['scopes = ["read", "convert"]', 'read = ["*"]', 'write = ["*"]']
    lines += ["[roots]", f"data = {json.dumps(str(folder / 'data'))}"]
    file = folder / "settings.toml"
    file.write_text("\n".join(lines))
    return file


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"listens on (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {log.read_text()}")
