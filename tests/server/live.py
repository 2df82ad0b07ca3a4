"""A real server process on loopback, ended by SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from tests.server.forked import WAITS, Forked
from tests.server.tokens import bearer, token_documents

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0
"""Far more than a start, an end or an answer takes, for a machine that is busy."""


@dataclass
class Live:
    """A server process, its address, and its log so far."""

    process: Forked | subprocess.Popen[bytes]
    url: str
    log: Path

    def client(self, who: str | None = "ann", **more: Any) -> httpx.Client:
        """A client of its own, without the certificates of TLS, which take 20 ms to load and which no server here has."""
        more = {"headers": bearer(who) if who else {}, "verify": False, **more}
        return httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS, **more)

    def lines(self) -> list[dict[str, Any]]:
        """What was logged as JSON, without a last line that is still being written."""
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(x) for x in whole.splitlines() if x.startswith("{")]

    def line(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first line of this kind, once it is there: a request's is written after its answer."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := [line for line in self.lines() if holds(line)]):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return found[0]

    def end(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Tells it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "server")])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RESHARD_")}
    return {**kept, "PYTHONPATH": paths}


def settings_file(folder: Path, **settings: Any) -> Path:
    """Settings as TOML, with the tokens of the tests."""
    lines = [f"{name} = {toml_of(value)}" for name, value in settings.items()]
    for token in token_documents():
        lines += ["[[tokens]]", *(f"{name} = {json.dumps(value)}" for name, value in token.items())]
    file = folder / "settings.toml"
    file.write_text("\n".join(lines))
    return file


def toml_of(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {toml_of(one)}' for name, one in value.items())}}}"
    return json.dumps(value)


@contextmanager
def live(
    folder: Path,
    *flags: str,
    module: str = "reshard",
    waits: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[Live]:
    """A server with these settings, its state and its root ``data`` in the folder; ``waits`` are constants of its modules."""
    data, log = folder / "data", folder / "log"
    data.mkdir(parents=True, exist_ok=True)
    words = [module, "serve", "--port", 0, "--state", folder / "state", "--root", f"data={data}"]
    words += ["--settings", settings_file(folder, **settings), *flags]
    log.write_bytes(b"")
    process = Forked(words, {**environment(), WAITS: json.dumps(dict(waits))}, folder, log, log)
    try:
        yield Live(process, wait_for_address(process, log), log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_address(process: Forked | subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, once it is ready."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"listens on (http://\S+)", log.read_text())
        if found:
            with suppress(httpx.HTTPError):  # its database may be slow
                with Live(process, found[1], log).client(None) as client:
                    client.get("/readyz").raise_for_status()
                return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")
