"""Routes of views: stored like layouts and maps; their revisions and files, and who reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool

from reshard import ViewFile
from reshard_server.api.caller import Reading
from reshard_server.api.openapi import examples
from reshard_server.api.openapi.description import problems
from reshard_server.api.stored import StoredDocuments, routes_of
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored.kinds import VIEW
from reshard_server.errors.problems import CHANGED, GONE, NO_VIEW, OF_A_BUCKET
from reshard_server.schemas.base import DEFAULT_PAGE, LARGEST_STEP, Name, PageSize
from reshard_server.schemas.view import (
    FileOfView,
    ListedView,
    StoredView,
    ViewBody,
    ViewFiles,
    ViewLoad,
    ViewLoads,
    ViewPage,
    ViewRevision,
    ViewRevisions,
    ViewVersionPage,
)
from reshard_server.views.catalogue import MAIN
from reshard_server.views.recorded import RecordedViews
from reshard_server.views.revisions import Revision

VIEWS = routes_of(
    StoredDocuments(
        VIEW, ViewBody, StoredView, ListedView, ViewPage, ViewVersionPage,
        "The options are checked now; whether the source can give the view is known when one of its revisions is read.",
        (examples.VIEWS, examples.STORED_VIEW),
        "Those whose paths are below roots that the token may read.", "their sources stay as they are",
    )
)  # fmt: skip


def _views(request: Request) -> RecordedViews:
    found: RecordedViews = request.app.state.catalogue
    return found


Views = Annotated[RecordedViews, Depends(_views)]
ViewName = Annotated[Name, Path(description="Name of a view.")]
Before = Annotated[int | None, Query(ge=0, le=LARGEST_STEP, description="Only earlier steps.")]
Asked = Annotated[str, Query(max_length=40, description="An id, or main.")]


@VIEWS.get("/{name}/revisions", responses=problems(NO_VIEW, *OF_A_BUCKET))
async def list_revisions(
    name: ViewName, views: Views, caller: Reading, page_size: PageSize = DEFAULT_PAGE, before: Before = None
) -> ViewRevisions:  # fmt: skip
    """Lists the states of the source in which the view can be read, newest first; the first of all is ``main``.

    With the step latest it is the only one in the list. The ids of earlier ones answer as long as their sources are there.
    """
    found = await views.revisions(caller, name, page_size, before)
    return ViewRevisions(revisions=[shown_revision(views, one) for one in found])


def shown_revision(views: RecordedViews, found: Revision) -> ViewRevision:
    """The answer about a revision."""
    modified, is_open = datetime.fromtimestamp(found.modified, UTC), found.commit in views.opened
    return ViewRevision(commit=found.commit, step=found.step, modified=modified, is_open=is_open)


@VIEWS.get("/{name}/files", responses=problems(NO_VIEW, CHANGED, GONE, *OF_A_BUCKET))
async def list_files(name: ViewName, views: Views, caller: Reading, revision: Asked = MAIN) -> ViewFiles:  # fmt: skip
    """Lists the files of a revision, by path, as a conversion would write them. Reads no tensor."""
    served = await views.find(caller, name, revision)
    files = await run_in_threadpool(lambda: [*map(_file, served.view.files.values())])
    return ViewFiles(commit=served.commit, identity=served.view.identity, files=files)


def _file(file: ViewFile) -> FileOfView:
    crc = file.crc64nvme
    hexadecimal = None if crc is None else f"{crc:016x}"
    return FileOfView(path=file.path, nbytes=file.nbytes, crc64nvme=hexadecimal)


@VIEWS.get("/{name}/loads")
async def list_loads(name: ViewName, views: Views, caller: Reading) -> ViewLoads:
    """Tells who reads the view from this server now, or has within the last ten seconds; an admin sees all tokens, others their own."""
    await views.stored(caller, name)
    return ViewLoads(loads=shown_loads(views, caller, name))


def shown_loads(views: RecordedViews, caller: Caller, name: str) -> list[ViewLoad]:
    """The readers of a view: all for an admin, themselves for others."""
    shown = (one for one in views.loads.of(name) if caller.is_admin or one[0] == caller.name)
    return [ViewLoad(token=t, streams=n, bytes_per_second=rate) for t, n, rate in shown]
