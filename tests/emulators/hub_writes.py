"""Writes to the hub of the tests: repositories, branches, large files by their SHA-256, and commits, as the documented API has them.

A token writes if it is among ``writers``. Large files are sent to the second server, whole or in parts of ``part_bytes``, and count once the
hub knows them; ``stored`` has those that arrived. A commit names them, and needs the head that it was made for::

    hub.writers.add("hf_writes")
    hub.asked("cdn", method="PUT")                    # what was sent
    hub.repo("org/model").messages[sha]               # of a commit
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from tests.emulators.hub import HubRequest, Repository

_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_API = rf"/api/models/{_REPO}"


def write(request: HubRequest, path: str) -> None:
    """Answers a POST to the hub, or the DELETE of a branch."""
    for pattern, then in _ROUTES.items():
        if found := re.fullmatch(pattern, path):
            if then is _complete or request.writes():
                then(request, *(unquote(text) for text in found.groups()))
            return
    request.refuse(404)


def _create_repo(request: HubRequest) -> None:
    asked = json.loads(request.body)
    name = f"{asked['organization']}/{asked['name']}"
    if ("models", name) in request.hub.repos:
        request.refuse(409, "", "You already created this model repo")
        return
    repo = request.hub.repo(name, is_private=asked.get("visibility") == "private")
    repo.commit({".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
    request.hub.tokens[request.token] |= {name}
    request.json({"url": f"{request.hub.url}/{name}", "name": name})


def _change_branch(request: HubRequest, name: str, branch: str) -> None:
    if request.command == "DELETE":
        del request.hub.repo(name).refs[branch]
        request.json({})
        return
    start = json.loads(request.body).get("startingPoint", "main")

    def create(repo: Repository, sha: str) -> None:
        if branch in repo.refs:
            request.refuse(409, "", "Reference already exists")
            return
        repo.refs[branch] = sha
        request.json({})

    request.with_commit("models", name, start, create)


def _preupload(request: HubRequest, name: str, revision: str) -> None:
    def tell(repo: Repository, sha: str) -> None:
        from tests.emulators.hub import blob_sha1, is_large, sha256

        there = repo.commits[sha]
        ignored = there.get(".gitignore", b"").decode().split()

        def about(asked: dict[str, Any]) -> dict[str, Any]:
            path, data = asked["path"], there.get(asked["path"])
            large = path.endswith(".safetensors") or is_large(path, bytes(asked["size"]))
            found = None if data is None else sha256(data) if large else blob_sha1(data)
            is_ignored = any(fnmatch(path, pattern) for pattern in ignored)
            mode = "lfs" if large else "regular"
            return {"path": path, "uploadMode": mode, "shouldIgnore": is_ignored, "oid": found}

        request.json({"files": [about(asked) for asked in json.loads(request.body)["files"]]})

    request.with_commit("models", name, revision, tell)


def _batch(request: HubRequest, name: str) -> None:
    """The way to send each large file that the hub does not have."""

    def tell(repo: Repository, _: str) -> None:
        from tests.emulators.hub import sha256

        hub = request.hub
        for files in repo.commits.values():
            hub.stored |= {sha256(data): data for data in files.values()}
        found = []
        for asked in json.loads(request.body)["objects"]:
            oid, size = asked["oid"], asked["size"]
            if oid in hub.stored:
                found.append({"oid": oid, "size": size})
                continue
            upload: dict[str, Any] = {"href": f"{hub.cdn}/{oid}?signature={hub.signature}"}
            if hub.part_bytes and size > hub.part_bytes:
                count = -(-size // hub.part_bytes)
                parts = {f"{n:05d}": f"{hub.cdn}/{oid}/{n}?signature={hub.signature}" for n in range(1, count + 1)}  # fmt: skip
                upload = {"href": f"{hub.url}/api/complete/{oid}", "header": {"chunk_size": str(hub.part_bytes), **parts}}  # fmt: skip
            verify = {"href": f"{hub.url}/{name}.git/info/lfs/objects/verify"}
            found.append(
                {"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}}
            )
        request.json({"transfer": "basic", "objects": found})

    request.with_commit("models", name, "main", tell)


def _complete(request: HubRequest, oid: str) -> None:
    """Joins the parts of a large file; the URL of the real hub is signed, and asked without a token."""
    hub, asked = request.hub, json.loads(request.body)
    data = b"".join(hub.parts.pop((oid, each["partNumber"])) for each in asked["parts"])
    request.answer(200 if keep(request, oid, data) else 400, b"{}", {})


def keep(request: Any, oid: str, data: bytes) -> bool:
    """Keeps a large file that was sent; false if it has another SHA-256."""
    if hashlib.sha256(data).hexdigest() != oid:
        return False
    request.hub.stored[oid] = data
    return True


def _verify(request: HubRequest, _: str) -> None:
    asked = json.loads(request.body)
    data = request.hub.stored.get(asked["oid"])
    request.answer(200 if data is not None and len(data) == asked["size"] else 404, b"{}", {})


def _commit(request: HubRequest, name: str, branch: str) -> None:
    def commit(repo: Repository, head: str) -> None:
        first, *lines = map(json.loads, bytes(request.body).splitlines())
        if first["value"].get("parentCommit", head) != head:
            request.refuse(412, "", "A commit has happened since. Please refresh and try again.")
            return
        if branch not in repo.refs:
            request.refuse(400, "", "the revision is no branch")
            return
        files = dict(_files(request, lines))
        if files and all(each is not None or path in repo.commits[head] for path, each in files.items()):  # fmt: skip
            message = f"{first['value']['summary']}\n\n{first['value']['description']}"
            sha = repo.commit(files, branch, message)
            request.json({"success": True, "commitOid": sha, "commitUrl": f"{request.hub.url}/{name}/commit/{sha}"})  # fmt: skip
        else:
            request.refuse(404, "EntryNotFound", "A file with this name doesn't exist")

    request.with_commit("models", name, branch, commit)


def _files(request: HubRequest, lines: list[Any]) -> Iterator[tuple[str, bytes | None]]:
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            yield value["path"], base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            yield value["path"], request.hub.stored[value["oid"]]
        else:
            assert line["key"] == "deletedFile", line
            yield value["path"], None


def _check_card(request: HubRequest) -> None:
    """Any card is right."""
    request.json({"errors": [], "warnings": []})


_ROUTES: dict[str, Callable[..., None]] = {
    "/api/repos/create": _create_repo,
    "/api/validate-yaml": _check_card,
    rf"{_API}/branch/([^/]+)": _change_branch,
    rf"{_API}/preupload/([^/]+)": _preupload,
    rf"/{_REPO}\.git/info/lfs/objects/batch": _batch,
    rf"/{_REPO}\.git/info/lfs/objects/verify": _verify,
    "/api/complete/([0-9a-f]{64})": _complete,
    rf"{_API}/commit/([^/]+)": _commit,
}
