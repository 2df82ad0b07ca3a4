"""The Hugging Face face: views as models of a hub, for clients whose ``HF_ENDPOINT`` is ``…/hf``.

Clients ask in this order, and nothing else is answered::

    GET   /hf/api/models/views/NAME/revision/main       the commit, and the names of the files
    GET   /hf/api/models/views/NAME/tree/COMMIT         their sizes and ids
    HEAD  /hf/views/NAME/resolve/COMMIT/config.json     its size and ETag
    GET   /hf/views/NAME/resolve/COMMIT/config.json     its bytes, or a range of them

The id of a file without tensors is git's. That of a file with tensors changes with its bytes, but is no digest of them. No SHA-256 is
sent (``lfs``), since none is known of bytes that were never read, and nothing of Xet, which would let clients ask by another protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from reshard import ViewFile
from reshard_server.api.caller import Reading
from reshard_server.errors.hub_headers import CODE, NO_FILE, NO_REVISION, ROOT
from reshard_server.errors.problems import MALFORMED, NOT_FOUND, ProblemError
from reshard_server.resources.resource import names_tag
from reshard_server.views.byte_stream import ByteStream, byte_range
from reshard_server.views.catalogue import MAIN, NAMESPACE, Catalogue, ServedView

COMMIT = "X-Repo-Commit"
ROUTER = APIRouter(prefix=ROOT, include_in_schema=False)
MODEL = "/api/models/{owner}/{name}"


async def _served(request: Request, caller: Reading, owner: str, name: str) -> ServedView:
    """The revision of a view that the path names; ``main`` where it names none."""
    catalogue: Catalogue = request.app.state.catalogue
    revision = request.path_params.get("revision", MAIN)
    if owner != NAMESPACE:
        raise _nothing(request)
    try:
        return await catalogue.find(caller, name, revision)
    except ProblemError as problem:
        is_known = problem.kind is NOT_FOUND and name in await catalogue.names(caller)
        problem.headers = {**({CODE: NO_REVISION} if is_known else {}), **problem.headers}
        raise


Served = Annotated[ServedView, Depends(_served)]


@ROUTER.get("/api/models")
async def list_models(
    request: Request, caller: Reading, author: str = NAMESPACE, search: str = ""
) -> Response:
    """Every view whose name has the text ``search``."""
    names = await request.app.state.catalogue.names(caller) if author == NAMESPACE else ()
    found = [_about(name) for name in names]
    return JSONResponse([model for model in found if search.lower() in model["id"].lower()])


@ROUTER.get(MODEL)
@ROUTER.get(MODEL + "/revision/{revision:path}")
async def get_model(served: Served) -> Response:
    """The commit of a revision, and its files."""
    files = [{"rfilename": path, "size": f.nbytes} for path, f in served.view.files.items()]
    modified = datetime.fromtimestamp(served.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    facts = {"sha": served.commit, "lastModified": modified, "siblings": files}
    return JSONResponse({**_about(served.name), **facts})


def _about(name: str) -> dict[str, Any]:
    model = f"{NAMESPACE}/{name}"
    is_closed = dict.fromkeys(("private", "gated", "disabled"), False)
    return {"id": model, "modelId": model, "author": NAMESPACE, "tags": [], **is_closed}


@ROUTER.get(MODEL + "/refs")
async def get_refs(served: Served) -> Response:
    """The branches: ``main`` alone."""
    main = {"name": MAIN, "ref": f"refs/heads/{MAIN}", "targetCommit": served.commit}
    return JSONResponse({"branches": [main], "converts": [], "tags": [], "pullRequests": []})


@ROUTER.get(MODEL + "/tree/{revision}")
@ROUTER.get(MODEL + "/tree/{revision}/{folder:path}")
async def get_tree(served: Served, folder: str = "", recursive: bool = False) -> Response:
    """The files and folders in a folder, with ``recursive`` also those in its folders."""
    found = await run_in_threadpool(_entries, served, folder, recursive)
    if folder and not found:
        raise _no_file(served, folder)
    return JSONResponse(list(found.values()))


@ROUTER.post(MODEL + "/paths-info/{revision}")
async def get_paths(request: Request, served: Served) -> Response:
    """Those of the named paths that are there."""
    paths = parse_qs((await request.body()).decode(errors="replace")).get("paths")
    if paths is None:
        raise ProblemError(
            MALFORMED, "expected a form with the member paths; send it once for each path"
        )
    found = await run_in_threadpool(_entries, served, "", True)
    return JSONResponse([found[path] for path in paths if path in found])


def _entries(served: ServedView, folder: str, recursive: bool) -> Mapping[str, Any]:
    """Files and folders by path, in order; files that were made when the view was planned are read once for their ids."""
    found: dict[str, Any] = {}
    start = len(folder) + 1 if folder else 0
    for path, file in served.view.files.items():
        if folder and not path.startswith(f"{folder}/"):
            continue
        slashes = [at for at, letter in enumerate(path) if letter == "/" and at >= start]
        for at in slashes if recursive else slashes[:1]:
            entry = {"type": "directory", "path": path[:at], "size": 0, "oid": served.commit}
            found.setdefault(path[:at], entry)
        if recursive or not slashes:
            found[path] = {"type": "file", "path": path, "size": file.nbytes, "oid": _id(file)}
    return found


def _id(file: ViewFile) -> str:
    return file.git_id or file.tag


@ROUTER.api_route("/{owner}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
async def get_file(request: Request, caller: Reading, served: Served, path: str) -> Response:
    """The bytes of a file, or one range of them. HEAD reads none."""
    file = served.view.files.get(path)
    if file is None:
        raise _no_file(served, path)
    # As on a hub: what the tree calls its id, so that a client can tell that they are of one file.
    asked, tag = request.headers, f'"{await run_in_threadpool(_id, file)}"'
    headers = {"ETag": tag, COMMIT: served.commit, "Accept-Ranges": "bytes"}
    headers["Last-Modified"] = formatdate(served.modified, usegmt=True)
    if names_tag(asked.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    is_head = request.method == "HEAD"  # RFC 9110 (14.2) has ranges of GET alone
    wanted = byte_range(
        None if is_head else asked.get("range"), asked.get("if-range"), tag, file.nbytes
    )
    headers["Content-Length"] = str(wanted.length)
    if wanted.is_part:
        headers["Content-Range"] = wanted.content_range
    if is_head:
        return Response(headers=headers, media_type=ByteStream.media_type)
    catalogue: Catalogue = request.app.state.catalogue
    status = 206 if wanted.is_part else 200
    return await catalogue.send(caller, served, path, wanted.start, wanted.stop, status, headers)


@ROUTER.get("/{_:path}")
async def get_anything_else(request: Request) -> Response:
    """Refuses every other path as a hub does: a model, or a data set, that it does not have."""
    raise _nothing(request)


def _nothing(request: Request) -> ProblemError:
    return ProblemError(
        NOT_FOUND,
        f"{request.url.path[:200]!r} is nothing that this server has; it has models only, whose names begin with {NAMESPACE}/",
    )


def _no_file(served: ServedView, path: str) -> ProblemError:
    # Clients note at the commit that a file is not there, and ask no more.
    return ProblemError(
        NOT_FOUND,
        f"the view {served.name!r} has no file {path[:200]!r}; its tree lists those that it has",
        headers={CODE: NO_FILE, COMMIT: served.commit},
    )
