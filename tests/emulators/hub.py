"""A hub of models on this host, made from the documented API of the Hugging Face hub: commits, listings in pages, files in ranges.

Large files are answered by a redirect to a second server, as the real hub does: it refuses requests that carry a token, and URLs that
are expired. The fixture ``hub`` (``tests/conftest.py``) starts one, and sets what huggingface_hub reads::

    def test_it(hub: Hub) -> None:
        first = hub.repo("org/model").commit({"model.safetensors": data})
        hub.faults.append(Fault("/resolve/", status=503, times=2))
        reshard.convert("hf://org/model", target)
        assert hub.asked("cdn")[0].range == "bytes=0-7"

A token is a key of ``tokens``, and reads the private and gated repositories that are named there. ``hub_writes.py`` has what writes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from tests.emulators.hub_writes import keep, write

LARGE_BYTES = 4096
"""Files of this size, and those that end with ``.safetensors``, are large files: they have a SHA-256, and another server has their bytes."""

Body = Literal["", "short", "long", "broken", "whole", "encoded"]


@dataclass
class Fault:
    """The answer of a request whose path contains ``part``, ``times`` times; None for ever.

    Attributes:
        status: instead of the answer, with ``headers``.
        headers: put into the answer, in place of its own.
        body: ``short`` and ``long`` have other bytes than announced, ``broken`` ends in the middle, ``whole`` is the file instead of a range.
        sleep_s: before the answer.
        call: before the answer, such as a commit.
    """

    part: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = ""
    times: int | None = 1
    sleep_s: float = 0
    call: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Asked:
    """A request: ``server`` is ``hub`` or ``cdn``."""

    server: str
    method: str
    path: str
    headers: Mapping[str, str]
    status: int
    sent_bytes: int

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class Repository:
    """A repository; ``commits`` has the files of each, ``refs`` the commit of each branch and tag."""

    kind: str
    name: str
    is_private: bool = False
    is_gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes | None], revision: str = "main", message: str = "") -> str:  # fmt: skip
        """Puts files into a branch, and removes those that are None; returns the commit."""
        parent = self.refs.get(revision, self.refs.get("main", ""))
        before = self.commits.get(parent, {})
        after = {name: data for name, data in {**before, **files}.items() if data is not None}
        texts = [f"{name} {sha256(data)}" for name, data in sorted(after.items())]
        sha = hashlib.sha1(
            "\n".join([str(len(self.commits)), *texts]).encode(), usedforsecurity=False
        ).hexdigest()
        self.commits[sha], self.refs[revision] = after, sha
        self.parents[sha], self.messages[sha] = parent, message
        return sha

    def sha_of(self, revision: str) -> str | None:
        """The commit that a branch, a tag or a commit names."""
        return self.refs.get(revision, revision if revision in self.commits else None)


def is_large(name: str, data: bytes) -> bool:
    """True if a file is kept by its SHA-256 outside of the repository."""
    return name.endswith(".safetensors") or len(data) >= LARGE_BYTES


@lru_cache(1024)
def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob_sha1(data: bytes) -> str:
    """The hash of a file in git."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Hub:
    """Both servers, their repositories, what was asked of them, and the faults to come."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repository] = {}
        self.tokens: dict[str, frozenset[str]] = {}
        self.faults: list[Fault] = []
        self.log: list[Asked] = []
        self.page_entries = 1000
        self.writers: set[str] = set()
        self.stored: dict[str, bytes] = {}
        """Large files by their SHA-256 that were sent, or are in a repository."""
        self.part_bytes = 0
        """Larger files are sent in parts of this size; 0 for none."""
        self.parts: dict[tuple[str, int], bytes] = {}
        self.large: dict[str, bytes] = {}
        """Large files by their SHA-256, once they were asked for."""
        self.signature = 0
        """Part of the URLs of large files; those of an earlier number are expired."""
        self.lock = threading.Lock()
        self._servers = [_serve(self, HubRequest), _serve(self, _CdnRequest)]
        self.url, self.cdn = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)

    def repo(self, name: str, kind: str = "models", **options: Any) -> Repository:
        """A repository, made if there is none of that name."""
        return self.repos.setdefault((kind, name), Repository(kind, name, **options))

    def asked(self, server: str = "", part: str = "", method: str = "") -> list[Asked]:
        """The requests to one server, with a part of their path and a method."""
        return [
            one
            for one in self.log
            if server in one.server and part in one.path and method in one.method
        ]

    def fault(self, path: str) -> Fault:
        """The next fault for a request; one that does nothing if there is none."""
        with self.lock:
            for one in self.faults:
                if one.part in path and one.times != 0:
                    one.times = None if one.times is None else one.times - 1
                    return one
        return Fault("")

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Says nothing of clients that left."""


def _serve(hub: Hub, handler: type[_Request]) -> ThreadingHTTPServer:
    server = _Server(("127.0.0.1", 0), type(handler.__name__, (handler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class _Request(BaseHTTPRequestHandler):
    """A request to either server: faults, the log, and answers."""

    hub: Hub
    server_name: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else short answers wait for 40 ms

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.fault = self.hub.fault(self.path)
        self.fault.call()
        time.sleep(self.fault.sleep_s)
        self.url = urlsplit(self.path)
        if self.fault.status:
            self.answer(self.fault.status, b"", {})
        else:
            self.reply(self.url.path)

    def reply(self, path: str) -> None:
        """Answers a request for a path, which is still quoted: a slash in a revision is written %2F."""
        raise AssertionError(path)

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        told = {"X-Error-Code": code, "X-Error-Message": message}
        self.answer(status, b"", {name: text for name, text in told.items() if text})

    def json(self, found: object, headers: Mapping[str, str] | None = None) -> None:
        self.answer(200, json.dumps(found).encode(), {"Content-Type": "application/json", **(headers or {})})  # fmt: skip

    def file(self, data: bytes, headers: Mapping[str, str]) -> None:
        """A file, or the range of it that is asked for."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if wanted is None or self.fault.body == "whole":
            self.answer(200, data, headers)
            return
        start, end = int(wanted[1]), min(int(wanted[2] or len(data) - 1) + 1, len(data))
        if start >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        told = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}", **headers}
        self.answer(206, data[start:end], told)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        sent = {"Content-Length": str(len(body)), **headers, **self.fault.headers}
        kind = self.fault.body
        if kind in (
            "short",
            "long",
        ):  # in a body without a length, so that nothing but its content shows it
            body = body[:-1] if kind == "short" else body + b"x"
            sent |= {"Connection": "close"}
            del sent["Content-Length"]
        if kind == "encoded":
            sent |= {"Content-Encoding": "gzip"}
        with self.hub.lock:
            told = {name.lower(): text for name, text in self.headers.items()}
            self.hub.log.append(Asked(self.server_name, self.command, self.path, told, status, len(body)))  # fmt: skip
        self.send_response(status)
        for name, text in sent.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if kind == "broken" else body)
        self.close_connection = self.close_connection or kind in ("short", "long", "broken")


_REPO = r"([\w.-]+/[\w.-]+)"


class HubRequest(_Request):
    """The API, and the files of repositories."""

    server_name = "hub"

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def writes(self) -> bool:
        """False, and a refusal, for a token that may not write."""
        if self.token not in self.hub.tokens:
            self.refuse(
                401, "", "Invalid credentials in Authorization header" if self.token else ""
            )
        elif self.token not in self.hub.writers:
            self.refuse(403, "", "You don't have the rights to write here")
        return self.token in self.hub.writers

    def reply(self, path: str) -> None:
        if self.command in ("POST", "DELETE"):
            write(self, path)
        elif found := re.fullmatch(rf"/api/(models|datasets|spaces)/{_REPO}(?:/revision/([^/]+))?", path):  # fmt: skip
            self.with_commit(found[1], found[2], unquote(found[3] or "main"), self.info)
        elif found := re.fullmatch(rf"/api/(models|datasets|spaces)/{_REPO}/tree/([^/]+)", path):
            self.with_commit(found[1], found[2], unquote(found[3]), self.tree)
        elif found := re.fullmatch(rf"/api/(models|datasets|spaces)/{_REPO}/commits/([^/]+)", path):
            self.with_commit(found[1], found[2], unquote(found[3]), self.commits)
        elif found := re.fullmatch(rf"/(?:(datasets|spaces)/)?{_REPO}/resolve/([^/]+)/(.+)", path):
            name = unquote(found[4])
            self.with_commit(found[1] or "models", found[2], unquote(found[3]), lambda repo, sha: self.resolve(repo, sha, name))  # fmt: skip
        else:
            self.refuse(404)

    def with_commit(self, kind: str, name: str, revision: str, then: Callable[[Repository, str], None]) -> None:  # fmt: skip
        """Refuses who may not see a repository, and revisions that it does not have."""
        repo = self.hub.repos.get((kind, name))
        token = self.token
        if token and token not in self.hub.tokens:
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return
        self.may_read = repo is not None and name in self.hub.tokens.get(token, ())
        if repo is None or (repo.is_private and not self.may_read):
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif (sha := repo.sha_of(revision)) is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            then(repo, sha)

    def info(self, repo: Repository, sha: str) -> None:
        names = [{"rfilename": name} for name in sorted(repo.commits[sha])]
        gated = "manual" if repo.is_gated else False
        self.json({"id": repo.name, "sha": sha, "private": repo.is_private, "gated": gated, "siblings": names})  # fmt: skip

    def commits(self, repo: Repository, sha: str) -> None:
        found = []
        while sha:
            found.append({"id": sha, "title": repo.messages[sha].partition("\n")[0], "message": repo.messages[sha], "authors": [], "date": "2026-01-01T00:00:00.000Z"})  # fmt: skip
            sha = repo.parents[sha]
        self.json(found)

    def tree(self, repo: Repository, sha: str) -> None:
        files, entries = repo.commits[sha], dict[str, dict[str, Any]]()
        for name, data in sorted(files.items()):
            parts = name.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                entries[folder] = {"type": "directory", "path": folder, "oid": blob_sha1(folder.encode()), "size": 0}  # fmt: skip
            entries[name] = {
                "type": "file",
                "path": name,
                "oid": blob_sha1(data),
                "size": len(data),
            }
            if is_large(name, data):
                entries[name]["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
        asked, every = parse_qs(self.url.query), list(entries.values())
        if asked.get("recursive") != ["true"]:
            every = [one for one in every if "/" not in one["path"]]
        start = int(asked.get("cursor", ["0"])[0])
        end, headers = start + self.hub.page_entries, dict[str, str]()
        if end < len(every):
            following = f"{self.hub.url}{self.url.path}?recursive=true&expand=false&cursor={end}"
            headers["Link"] = f'<{following}>; rel="next"'
        self.json(every[start:end], headers)

    def resolve(self, repo: Repository, sha: str, name: str) -> None:
        if repo.is_gated and not self.may_read:
            status = 403 if "authorization" in self.headers else 401
            self.refuse(status, "GatedRepo", f"Access to model {repo.name} is restricted.")
            return
        data = repo.commits[sha].get(name)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        told = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if not is_large(name, data):
            self.file(data, told | {"ETag": f'"{blob_sha1(data)}"'})
            return
        digest = sha256(data)
        self.hub.large[digest] = data
        told |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        place = f"{self.hub.cdn}/{digest}?signature={self.hub.signature}&name={quote(name)}"
        self.answer(302, b"", told | {"Location": place})


class _CdnRequest(_Request):
    """Large files by their SHA-256, for who has a signed URL and no token."""

    server_name = "cdn"

    def reply(self, path: str) -> None:
        if self.command == "PUT":
            self.take(path)
            return
        data = self.hub.large.get(path.removeprefix("/"))
        if "authorization" in self.headers or data is None:
            self.refuse(400)
        elif parse_qs(self.url.query).get("signature") != [str(self.hub.signature)]:
            self.refuse(403)
        else:
            self.file(data, {"ETag": '"0123"', "Accept-Ranges": "bytes"})

    def take(self, path: str) -> None:
        """Keeps a large file that is sent, or a part of one."""
        oid, _, part = path.removeprefix("/").partition("/")
        is_signed = parse_qs(self.url.query).get("signature") == [str(self.hub.signature)]
        if not is_signed or "authorization" in self.headers:
            self.refuse(403)
        elif part:
            self.hub.parts[oid, int(part)] = self.body
            self.answer(200, b"", {"ETag": f'"{part}"'})
        else:
            self.answer(200 if keep(self, oid, self.body) else 400, b"", {})


@contextmanager
def lend(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub without repositories, set in the environment, and in the constants that huggingface_hub made of it when it was imported."""
    from huggingface_hub import close_session, constants

    hub = Hub()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN_PATH"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "stored_tokens"))
    try:
        yield hub
    finally:
        close_session()
        hub.close()
