"""The systemd unit: valid, hardened, its settings real; its command serves, and is given time to end."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from reshard_server.settings import Settings, load_settings

import reshard
from tests.deploy.deployed import Installation, Place, run, started, tokens_toml
from tests.deploy.documents import DEPLOY, most_bytes, parse_size, unit
from tests.server.tokens import bearer

pytestmark = pytest.mark.xdist_group("deploy")
FILE = DEPLOY / "systemd" / "reshard.service"
TOML = DEPLOY / "systemd" / "server.toml"
SERVICE = unit()["Service"]
MOST_EXPOSURE = 15
"""Tenths, of at most 100; it serves a network and writes files, so it is never 0."""


@pytest.fixture
def systemd_analyze() -> str:
    found = shutil.which("systemd-analyze")
    assert found, (
        "systemd-analyze is missing; install it with: make tools (Debian's package systemd)"
    )
    return found


@pytest.fixture
def settings() -> Settings:
    return load_settings({}, TOML)


def test_systemd_takes_every_line(systemd_analyze: str, tmp_path: Path) -> None:
    done = _verify(systemd_analyze, tmp_path, FILE.read_text())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("KillMode=mixed", "KillMode=some", "Failed to parse kill mode"),
        ("OOMPolicy=", "OOMPolice=", "Unknown key"),
    ],
)
def test_a_slip_is_found(
    systemd_analyze: str, tmp_path: Path, before: str, after: str, words: str
) -> None:
    done = _verify(systemd_analyze, tmp_path, FILE.read_text().replace(before, after))
    assert words in done.stderr


def _verify(tool: str, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """With a command that is there: this machine has no /opt/reshard."""
    file = folder / "reshard.service"
    file.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    return subprocess.run(
        [tool, "verify", "--man=no", file], capture_output=True, text=True, timeout=120
    )


def test_it_is_hardened(systemd_analyze: str) -> None:
    run(
        systemd_analyze,
        "security",
        "--offline=yes",
        "--no-pager",
        f"--threshold={MOST_EXPOSURE}",
        FILE,
    )


def test_paths_agree(settings: Settings) -> None:
    assert SERVICE["ExecStart"].split()[-2:] == ["--settings", "/etc/reshard/server.toml"]
    assert (
        str(settings.state)
        == f"/var/lib/{SERVICE['StateDirectory']}"
        == SERVICE["WorkingDirectory"]
    )
    roots = set(map(str, settings.roots.values()))
    assert (
        roots
        == set(SERVICE["ReadWritePaths"].split())
        == set(unit()["Unit"]["RequiresMountsFor"].split())
    )
    assert str(settings.tokens_file).startswith(f"/etc/{SERVICE['ConfigurationDirectory']}/")
    user = (DEPLOY / "systemd" / "sysusers.conf").read_text()
    assert re.search(rf"^u {SERVICE['User']} - ", user, re.MULTILINE)
    assert SERVICE["Group"] == SERVICE["User"]
    assert (
        "ConfigurationDirectoryMode" not in SERVICE
    )  # that folder stays root's, and this user must enter it


def test_memory_and_time_suffice(settings: Settings) -> None:
    assert (
        most_bytes(settings) <= parse_size(SERVICE["MemoryHigh"]) < parse_size(SERVICE["MemoryMax"])
    )
    assert int(SERVICE["TimeoutStopSec"]) >= settings.drain_seconds + 15
    assert SERVICE["KillMode"] == "mixed"
    assert SERVICE["OOMPolicy"] == "continue"


def test_its_command_serves_where_no_memory_can_be_made_executable(
    image: Installation, at: Place
) -> None:
    assert SERVICE["MemoryDenyWriteExecute"] == SERVICE["NoNewPrivileges"] == "yes"
    reshard.save(at.at("/srv/checkpoints/a"), {"w": np.arange(64, dtype=np.int16)})
    at.make_writable("/srv/checkpoints", "/var/lib/reshard")
    at.write("/etc/reshard/tokens.toml", tokens_toml())
    words = SERVICE["ExecStart"].split()
    assert words[0] == "/opt/reshard/bin/reshard"
    at.write(
        words[-1],
        at.translate(TOML.read_text(), "/var/lib/reshard", "/etc/reshard", "/srv/checkpoints"),
    )
    command = [image.python, "-c", _REFUSING, image.reshard, *words[1:-1], at.at(words[-1])]
    with started(at, command, {}) as server, server.client() as client:
        asked = {"source": "data/a", "target": "data/b", "mesh": "x=2", "compression": "zstd:3"}
        made = client.post("/v1/conversions", json=asked, headers=bearer("ann"))
        assert made.status_code == 202, made.text
        with client.stream("GET", f"{made.headers['Location']}/events", timeout=120) as events:
            assert [x for x in events.iter_lines() if x.startswith("event:")][-1] == "event: end"
        ended = client.get(made.headers["Location"]).json()
        assert ended["state"] == "succeeded", ended
        assert client.get("/readyz").status_code == 200
        assert server.end(int(SERVICE["TimeoutStopSec"])) == 0


_REFUSING = """
import ctypes, os, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1   # Linux 6.3; systemd does the same with seccomp
ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
