"""The service installed as the image has it, and started as deployments start it, as a user that is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from reshard_server.auth.tokens import as_toml

from tests.deploy.documents import ROOT, instructions
from tests.server.live import Live, wait_for_address
from tests.server.tokens import token_settings

USER = 10001

MAY_READ = (
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs",
    *(f"--{which}=-all,+dac_read_search" for which in ("bounding-set", "inh-caps", "ambient-caps")),
)  # fmt: skip
"""The interpreter may lie where only root gets to: this user reads everything, and writes only what is its own."""


def extras() -> list[str]:
    """The extras that the image is built with, unless its builder names others."""
    (given,) = (
        rest for word, rest in instructions() if word == "ARG" and rest.startswith("EXTRAS=")
    )
    return given.removeprefix("EXTRAS=").split(",")


def needed() -> dict[str, Distribution]:
    """Every distribution that the project needs with the image's extras on this machine, by its canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, Distribution] = {}
    optional = (project["optional-dependencies"][extra] for extra in extras())
    for text in chain(project["dependencies"], *optional):
        _add(Requirement(text), frozenset(), found)
    return found


def _add(wanted: Requirement, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """The distribution that is wanted by one with these extras, and what it needs itself."""
    chosen = ({"extra": extra} for extra in extras or {""})
    if wanted.marker is not None and not any(map(wanted.marker.evaluate, chosen)):
        return
    name = canonicalize_name(wanted.name)
    if name in found and not wanted.extras:
        return
    found[name] = distribution(name)
    for text in found[name].requires or ():
        _add(Requirement(text), frozenset(wanted.extras), found)


@dataclass(frozen=True)
class Installation:
    """What ``/opt/reshard`` is in the image, in a folder that everybody may read."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def reshard(self) -> Path:
        return self.folder / "bin" / "reshard"


@contextmanager
def installed() -> Iterator[Installation]:
    """An environment with the wheel that the Dockerfile builds and with what its extra needs, and no more."""
    folder = Path(tempfile.mkdtemp(prefix="reshard-image-"))
    folder.chmod(0o755)
    try:
        run(*_building(), "--wheel-dir", folder / "wheels", ROOT)
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        site = Path(sysconfig.get_path("purelib", "venv", {"base": folder / "venv"}))
        for found in needed().values():
            _link(found, site)
        (wheel,) = (folder / "wheels").glob("*.whl")
        pip = (sys.executable, "-m", "pip", "--python", folder / "venv", "install")
        run(*pip, "--quiet", "--no-index", "--no-deps", wheel)
        yield Installation(folder / "venv")
    finally:
        shutil.rmtree(folder)


def _building() -> list[str]:
    """The Dockerfile's command that makes the wheel, but for where from and where to."""
    (line,) = (rest for word, rest in instructions() if word == "RUN" and " pip wheel " in rest)
    words = line.split()
    assert words[-3:] == ["--wheel-dir", "wheels", "."]
    return [sys.executable, *words[1:-3], "--quiet"]


def _link(found: Distribution, site: Path) -> None:
    """Links to what lies in site-packages of a distribution; its commands are of no concern."""
    tops = {file.parts[0] for file in found.files or () if ".." not in file.parts}
    for top in tops - {"__pycache__"}:
        source = Path(str(found.locate_file(top))).absolute()
        if not (site / top).exists():
            (site / top).symlink_to(source)


def run(*command: str | Path) -> str:
    """What it printed; an error shows what it complained of."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Place:
    """A folder in which a deployment's paths lie.

    Attributes:
        folder: ``/`` of the deployment.
    """

    folder: Path

    def at(self, path: str) -> Path:
        """Where a path of the deployment lies here."""
        return self.folder / path.lstrip("/")

    def write(self, path: str, text: str) -> None:
        """A file that the server's user may read and not write."""
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).write_text(text)

    def make_writable(self, *paths: str) -> None:
        """Folders of the server's user: the volumes that the deployment gives it."""
        for path in paths:
            self.at(path).mkdir(parents=True, exist_ok=True)
            for file in (self.at(path), *self.at(path).rglob("*")):
                if os.geteuid() == 0:
                    os.chown(file, USER, USER)

    def translate(self, text: str, *paths: str) -> str:
        """The text with these paths as they are here."""
        for path in paths:
            text = text.replace(f'"{path}', f'"{self.at(path)}')
        return text


@contextmanager
def place() -> Iterator[Place]:
    """A folder that the server's user can reach, unlike those of pytest, and cannot write to."""
    folder = Path(tempfile.mkdtemp(prefix="reshard-deployed-"))
    folder.chmod(0o755)
    try:
        yield Place(folder)
    finally:
        shutil.rmtree(folder)


def tokens_toml() -> str:
    """The tokens of the tests, as a file has them."""
    return "\n".join(map(as_toml, token_settings()))


def as_user(command: Sequence[str | Path]) -> list[str]:
    """The command as the image's user, where we are root; else as ourselves, who are nobody special."""
    return [*(MAY_READ if os.geteuid() == 0 else ()), *map(str, command)]


@contextmanager
def started(
    at: Place, command: Sequence[str | Path], environment: Mapping[str, str], name: str = "log"
) -> Iterator[Live]:
    """A server of this command, on a free port of loopback; nothing but the volumes can be written to.

    Flags come before every other setting, so that address and port are all that differs from the deployment.
    """
    flags = ("--host", "127.0.0.1", "--port", "0")
    log = at.folder / name
    with log.open("wb") as stream:
        process = subprocess.Popen(
            as_user([*command, *flags]), stdout=stream, stderr=stream, cwd="/",
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": "/nonexistent", **environment},
        )  # fmt: skip
    try:
        yield Live(process, wait_for_address(process, log), log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
