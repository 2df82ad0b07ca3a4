"""No answer names a folder of the server's machine, nor a root that the token may not see, whatever goes wrong."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import pytest
from reshard_server.app import ROUTERS

import reshard
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

ODD = 'it\'s "odd" ü %2f [1]'
"""A folder that messages quote and escape in many ways."""

FOREIGN = ("geheim", "elsewhere")
"""Roots that ann may not see: one is inside her root, one beside it."""

LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "w", "axes": ["x"]}]}
PATIENCE_SECONDS = 120
LARGE = 8 << 20

pytestmark = pytest.mark.xdist_group("no folder is told")


@dataclass
class Ann:
    """Asks, and looks into every answer.

    Attributes:
        asked: method and path of all requests that were answered.
    """

    client: httpx.Client
    secrets: tuple[str, ...]
    asked: list[tuple[str, str, int]] = field(default_factory=list)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self.client.request(method, path, **more)
            text = answer.text
        except httpx.RemoteProtocolError:  # a stream that was cut off
            self.asked.append((method, path, 0))
            return httpx.Response(499)
        self.asked.append((method, path, answer.status_code))
        told = [text, html.unescape(text), unquote(text), str(answer.headers)]
        told += _texts_in(text)
        said = f"{path} {more}"
        for secret in (s for s in self.secrets if s not in FOREIGN or s not in said):  # no echo
            for words in told:
                at = words.find(secret)
                assert at < 0, (method, path, more, secret, words[max(0, at - 300) : at + 300])
        assert answer.status_code < 500 or answer.status_code == 503, (method, path, text)
        return answer

    def convert(self, source: str, target: str, **more: Any) -> dict[str, Any]:
        """A conversion and all its documents, until its end."""
        body = {"source": source, "target": target, **more}
        self.ask("POST", "/v1/plans", json=body)
        self.ask("POST", "/new-conversion", data=self.form(**{**body, "do": "preview"}))
        made = self.ask("POST", "/v1/conversions", json=body)
        if made.status_code != 202:
            return {}
        path = f"/v1/conversions/{made.json()['id']}"
        self.ask("GET", f"{path}/events")
        ended: dict[str, Any] = self.ask("GET", path).json()
        assert ended["done"]
        for page in ("", "/plan"):
            self.ask("GET", path.removeprefix("/v1") + page)
        return ended

    def form(self, **fields: Any) -> dict[str, str]:
        page = self.client.get("/").text
        _, _, after = page.partition('name="form_key" value="')
        return {
            "form_key": after.partition('"')[0],
            **{k: v for k, v in fields.items() if isinstance(v, str)},
        }

    def look(self, checkpoint: str) -> None:
        """Everything that can be asked of a checkpoint without changing it."""
        body = {"checkpoint": checkpoint}
        self.ask("POST", "/v1/checkpoints:inspect", json=body)
        self.ask("POST", "/v1/checkpoints:verify", json=body)
        self.ask("POST", "/v1/layouts:preview", json={**body, "layout": LAYOUT})
        self.stream(checkpoint)
        self.ask("GET", "/checkpoints", params={"path": checkpoint})
        self.ask("GET", f"/checkpoints/{checkpoint}")

    def stream(self, checkpoint: str) -> None:
        for more in (
            {"name": "w"},
            {"name": "none"},
            {"shard": "1"},
            {"name": "w", "step": "latest"},
        ):
            self.ask("GET", "/v1/tensors", params={"checkpoint": checkpoint, **more})
            self.ask("HEAD", "/v1/tensors", params={"checkpoint": checkpoint, **more})
        self.ask("GET", "/v1/tensors/proof", params={"checkpoint": checkpoint, "name": "w"})
        self.ask("GET", "/v1/tensors/identity", params={"checkpoint": checkpoint})


def _texts_in(text: str) -> list[str]:
    """Every text of a JSON document, or of the JSON in a stream of events, as a client reads it."""
    lines = [line[5:] for line in text.splitlines() if line.startswith("data:")] or [text]
    found: list[str] = []
    for line in lines:
        try:
            _gather(json.loads(line), found)
        except ValueError:
            continue
    return found


def _gather(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            found.append(key)
            _gather(inner, found)
    elif isinstance(value, list):
        for inner in value:
            _gather(inner, found)


@dataclass
class Place:
    """A server whose folders have odd names."""

    server: Live
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def ann(self) -> Ann:
        client = self.server.client("ann", follow_redirects=False)
        client.timeout = httpx.Timeout(PATIENCE_SECONDS)
        own = {"Origin": self.server.url}
        signed = client.post("/sign-in", data={"token": TOKENS["ann"][0]}, headers=own)
        assert signed.status_code == 303
        client.headers["Origin"] = self.server.url
        client.headers["Accept"] = "*/*"
        parts = (str(self.folder), ODD, '"odd"', "odd%22", repr(ODD)[1:-1], json.dumps(ODD)[1:-1])
        return Ann(client, (*parts, self.folder.parent.name, *FOREIGN))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("leaks") / ODD
    for root in ("data", "data/inner", "elsewhere"):
        (folder / root).mkdir(parents=True)
    flags = [
        "--root",
        f"geheim={folder / 'data' / 'inner'}",
        "--root",
        f"elsewhere={folder / 'elsewhere'}",
    ]
    _save(folder / "data" / "good")
    _save(folder / "data" / "inner" / "theirs")
    _save(folder / "elsewhere" / "theirs")
    _save(folder / "data" / "steps" / "1000")
    large = {"w": np.random.default_rng(0).random((LARGE,), np.float32)}
    reshard.save(folder / "data" / "large", large, layout=None)
    settings = {"requests_per_minute": 10**6, "max_memory": 256 << 20}
    with live(folder, *flags, module="tests.server.limited", **settings) as server:
        yield Place(server, folder)


def _save(at: Path) -> None:
    layout = reshard.LayoutMap(reshard.DeviceMesh((2,), ("x",)))
    layout["w"] = ("x",)
    reshard.save(
        at, {"w": np.arange(64, dtype=np.float32), "b": np.zeros(3, np.float32)}, layout=layout
    )


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _garble(file: Path) -> None:
    file.write_bytes(b'{"\xff\x00' * 50)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _secret(file: Path) -> None:
    file.chmod(0)


def _circle(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def _out(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd")


DAMAGES: list[Callable[[Path], None]] = [
    _cut,
    _garble,
    Path.unlink,
    _folder,
    _secret,
    _circle,
    _out,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_checkpoint(place: Place, damage: Callable[[Path], None]) -> None:
    """Damages each file in turn; all questions to a child are asked of one file or two, and of each file after one damage."""
    ann, good = place.ann(), place.data / "good"
    files = sorted(p.relative_to(good) for p in good.rglob("*") if p.is_file())
    assert len(files) > 4
    for number, file in enumerate(files):
        name = f"damaged-{damage.__name__}-{number}"
        shutil.copytree(good, place.data / name)
        damage(place.data / name / file)
        ann.stream(f"data/{name}")
        if number % len(DAMAGES) == DAMAGES.index(damage):
            ann.look(f"data/{name}")
            ann.convert(f"data/{name}", f"data/out-{name}", layout=LAYOUT)
        shutil.rmtree(place.data / name)
    assert {status for _, _, status in ann.asked} >= {422}


def _prepare(data: Path) -> list[str]:
    """Paths without a checkpoint, each for a different reason."""
    (data / "file").write_text("no checkpoint")
    (data / "empty").mkdir()
    (data / "secret").mkdir()
    (data / "secret").chmod(0)
    (data / "readonly").mkdir()
    (data / "readonly").chmod(0o500)
    (data / "circle").symlink_to("circle")
    (data / "dangling").symlink_to("nothing")
    (data / "outside").symlink_to("../elsewhere/theirs")
    (data / "absolute").symlink_to(data / "good")
    (data / "into").symlink_to("inner/theirs")
    return [
        "data/none", "data/none/deeper", "data/file", "data/file/below", "data/empty", "data/secret", "data/secret/x",
        "data/circle", "data/dangling", "data/outside", "data/absolute", "data/into", "data/inner/theirs", "data/inner",
        "data/readonly", "data/steps", "geheim/theirs", "elsewhere/theirs", "nowhere/x",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def odd_paths(place: Place) -> Iterator[list[str]]:
    yield _prepare(place.data)
    (place.data / "secret").chmod(0o700)
    (place.data / "readonly").chmod(0o700)


def test_what_is_no_checkpoint(place: Place, odd_paths: list[str]) -> None:
    ann = place.ann()
    for path in odd_paths:
        ann.look(path)
        ann.ask("POST", "/v1/checkpoints:fingerprint", json={"checkpoint": path})
        ann.ask("GET", "/v1/checkpoints", params={"root": path.partition("/")[0]})
        root, _, prefix = path.partition("/")
        ann.ask("GET", "/v1/checkpoints", params={"root": root, "prefix": prefix})
        both = {"checkpoint": "data/good", "other": path}
        ann.ask("POST", "/v1/checkpoints:verify", json=both)
    for number, path in enumerate(odd_paths[::3]):
        ann.convert(path, f"data/from-{number}")


def test_targets_that_cannot_be_written(place: Place, odd_paths: list[str]) -> None:
    """Every other target is to be overwritten: a folder that is not a checkpoint must not change."""
    ann, overwrite = place.ann(), False
    for path in (
        *odd_paths[2:],
        "data/good",
        "data/good/inside",
        "data/secret/x/y",
        "data/readonly/x",
    ):
        overwrite = not overwrite
        ann.convert("data/steps/1000", path, layout=LAYOUT, overwrite=overwrite)
    several = [{"target": "data/readonly/a"}, {"target": "data/secret/b"}]
    made = ann.ask("POST", "/v1/conversions", json={"source": "data/good", "targets": several})
    ann.ask("GET", f"/v1/conversions/{made.json()['id']}/events")
    joint = {"source": "data/good", "targets": [*several, {"target": "data/c", "mesh": "x=3"}]}
    ann.ask("POST", "/v1/plans", json=joint)


def test_a_full_disk(place: Place) -> None:
    ann = place.ann()
    ended = ann.convert("data/large", "data/too-large", chunk_bytes="32MiB")
    assert ended["state"] == "failed"
    assert "data/" in ended["error"]["detail"] and ".too-large.reshard-partial" in json.dumps(ended)
    ann.ask("POST", f"/v1/conversions/{ended['id']}:retry")
    ann.ask("GET", f"/v1/conversions/{ended['id']}/events")


def test_what_succeeds(place: Place) -> None:
    ann = place.ann()
    ended = ann.convert("data/good", "data/made", layout=LAYOUT, verify="readback")
    assert ended["state"] == "succeeded", ended["error"]
    ann.look("data/made")
    ann.ask("POST", "/v1/checkpoints:fingerprint", json={"checkpoint": "data/made"})
    ann.ask(
        "POST", "/v1/checkpoints:verify", json={"checkpoint": "data/good", "other": "data/made"}
    )
    ann.ask("POST", "/v1/checkpoints:verify", json={"checkpoint": "data/made"},
            headers={"Accept": "text/event-stream"})  # fmt: skip


def test_schedules(place: Place, odd_paths: list[str]) -> None:
    ann = place.ann()
    for number, path in enumerate((*odd_paths, "data/steps")):
        name = f"s{number}"
        when = {"directory": path} if number % 2 else {"cron": "0 3 * * *", "source": path}
        field_name = "{step}" if "directory" in when else "{time}"
        targets = [{"target": f"data/readonly/{name}-{field_name}"}]
        ann.ask("PUT", f"/v1/schedules/{name}", json={"when": when, "targets": targets})
        ann.ask("POST", f"/v1/schedules/{name}:run")
        ann.ask("POST", f"/v1/schedules/{name}:run", json={"step": 1000})
        for page in (f"/v1/schedules/{name}", f"/v1/schedules/{name}/runs", f"/schedules/{name}"):
            ann.ask("GET", page)
        ann.ask("POST", f"/v1/schedules/{name}:pause")
    for page in ("/v1/schedules", "/schedules", "/v1/conversions?page_size=100", "/conversions", "/", "/checkpoints",
                 "/new-conversion", "/new-schedule", "/openapi.json", "/metrics", "/readyz", "/livez"):  # fmt: skip
        ann.ask("GET", page)


def test_every_route_with_names_that_are_nobodys(place: Place) -> None:
    ann = place.ann()
    for router in ROUTERS:
        for route in router.routes:
            path = getattr(route, "path", "")
            if path in ("/sign-in", "/sign-out"):
                continue
            for some in ("none", "%2e%2e", "a%0Ab", "x" * 300):
                named = (
                    path.replace("{id}", some).replace("{name}", some).replace("{path:path}", some)
                )
                for method in sorted(getattr(route, "methods", None) or ()):
                    body = {"data": ann.form()} if not path.startswith("/v1") else {"json": {}}
                    more = body if method not in ("GET", "HEAD") else {}
                    ann.ask(method, named, **more)
