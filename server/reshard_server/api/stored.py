"""Routes of named layouts, maps and views: stored, listed, read and deleted alike; and the preview of a layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from fastapi.openapi.models import Example

from reshard_server.api.answers import MaskedRoute, answered
from reshard_server.api.caller import Converting, Reading, Serving
from reshard_server.api.openapi import examples
from reshard_server.api.openapi.description import LAYOUT as LAYOUT_ANSWER
from reshard_server.api.openapi.description import problems
from reshard_server.auth.tokens import Caller
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import LAYOUT, MAP, StoredKind
from reshard_server.errors.problems import (
    BAD_CHECKPOINT,
    BAD_LAYOUT,
    BAD_PLAN,
    FORBIDDEN,
    NO_CHECKPOINT,
    NOT_FOUND,
    OF_A_BUCKET,
    PRECONDITION,
    QUOTA,
    STORAGE,
    UNAVAILABLE,
)
from reshard_server.resources import questions, stored
from reshard_server.resources.resource import names_tag
from reshard_server.resources.stored import VERSION_PATTERN, Expectation
from reshard_server.schemas.base import Answer, Name, Page, PrefixQuery, RequestDocument
from reshard_server.schemas.stored import (
    LayoutBody,
    LayoutPage,
    ListedLayout,
    ListedMap,
    ListedVersion,
    MapBody,
    MapPage,
    MapVersionPage,
    PreviewRequest,
    StoredLayout,
    StoredMap,
    Version,
    VersionPage,
)

IfMatch = Annotated[
    str | None,
    Header(
        description="Change it only if it still has this ETag; * if it exists.", max_length=1024
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(description="Only if it has none of these ETags; * if it does not exist.")
]


@dataclass(frozen=True)
class StoredDocuments:
    """The documents and the texts of one kind, for its routes.

    Attributes:
        about_put: the last paragraph about PUT.
        seen_by, kept: sentences about who sees them, and about what a deletion leaves.
        examples: of its body, and of a version.
    """

    kind: StoredKind
    body: type[RequestDocument]
    version: type[Version]
    listed: type[ListedVersion]
    page: type[Answer]
    versions: type[Answer]
    about_put: str
    examples: tuple[dict[str, Example], dict[str, Any]]
    seen_by: str = "Every token with the scope read sees all of them."
    kept: str = "conversions that were accepted with one are still carried out"


def routes_of(documents: StoredDocuments) -> APIRouter:
    """The routes of one kind: list, put, get, list versions, delete."""
    noun, plural = documents.kind.noun, f"{documents.kind.noun}s"
    bodies, example = documents.examples
    shown = {
        "content": {"application/json": {"example": example}},
        **examples.header_descriptions("ETag"),
    }
    router = APIRouter(prefix=f"/v1/{plural}", tags=[plural], route_class=MaskedRoute)
    list_names, put, get, list_versions, delete = _endpoints(documents)
    # The types that depend on the kind; FastAPI reads them when a route is added.
    name_type = Annotated[Name, Path(description=f"Name of a {noun}.")]
    for endpoint in (put, list_versions, delete):
        endpoint.__annotations__["name"] = name_type
    get.__annotations__["name"] = Annotated[
        str,
        Path(
            description=f"Name of a {noun}, for its newest version; or name@version.",
            max_length=139,
            pattern=VERSION_PATTERN,
            examples=[f"{example['name']}@3"],
        ),
    ]
    put.__annotations__["body"] = Annotated[documents.body, Body(openapi_examples=bodies)]

    router.get(
        "",
        name=f"list_{plural}",
        response_model=documents.page,
        description=f"Lists the newest version of each {noun}, by name. {documents.seen_by}\n\n"
        "Contents larger than 4096 bytes are left out.",
    )(list_names)
    router.put(
        "/{name}",
        name=f"put_{noun}",
        response_model=documents.version,
        description=f"Stores a {noun} as the newest version of its name. The name belongs to the token that stored it first.\n\n"
        f"{documents.about_put}",
        responses={
            200: {
                "description": "The newest version has this content already; nothing changed.",
                **shown,
            },
            201: {"description": "A new version.", "model": documents.version, **shown},
            **problems(BAD_LAYOUT, FORBIDDEN, PRECONDITION, QUOTA),
        },
    )(put)
    router.get(
        "/{name}",
        name=f"get_{noun}",
        response_model=documents.version,
        description=f"Returns a {noun}: its newest version, or ``name@version``.",
        responses={
            200: {"description": f"The {noun}.", **shown},
            304: {"description": "It has not changed since this ETag."},
        },
    )(get)
    router.get(
        "/{name}/versions",
        name=f"list_{noun}_versions",
        response_model=documents.versions,
        description=f"Lists all versions of a {noun}, newest first. Contents larger than 4096 bytes are left out.",
    )(list_versions)
    router.delete(
        "/{name}",
        name=f"delete_{noun}",
        status_code=204,
        description=f"Deletes all versions of a {noun}; {documents.kept}.",
        responses=problems(FORBIDDEN, PRECONDITION),
    )(delete)
    return router


def _endpoints(documents: StoredDocuments) -> tuple[Callable[..., Any], ...]:
    """The endpoints of one kind, in the order of ``routes_of``; that gives ``name`` and ``body`` their types."""
    kind, noun, plural = documents.kind, documents.kind.noun, f"{documents.kind.noun}s"

    def listed(found: Any, caller: Caller, page: type[Answer], member: str) -> Answer:
        seen = (version for version in found.versions if version.is_for(caller.may_read))
        shown: dict[str, Any] = {member: list(map(documents.listed.of, seen))}
        return page(**shown | {"next_page_token": found.next_page_token})

    def list_names(query: Annotated[PrefixQuery, Query()], serving: Serving, caller: Reading) -> Answer:  # fmt: skip
        found = versions.newest(
            serving.database,
            kind,
            query.page_size,
            query.page_token,
            prefix=query.prefix,
            with_content=True,
        )
        return listed(found, caller, documents.page, plural)

    def put(
        name: Any,
        body: Any,
        serving: Serving,
        caller: Converting,
        response: Response,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
    ) -> Version:
        expected = Expectation(if_match, if_none_match)
        content = getattr(body, noun)
        found, is_new = stored.put(serving, caller, kind, name, content, expected)
        response.status_code = 201 if is_new else 200
        response.headers["ETag"] = stored.tag_of(found) or ""
        if is_new:
            response.headers["Location"] = f"/v1/{plural}/{found.name}@{found.version}"
        return documents.version.of(found)

    def get(
        name: Any, serving: Serving, caller: Reading, response: Response, if_none_match: IfNoneMatch = None
    ) -> Version | Response:  # fmt: skip
        found = stored.find(serving, caller, kind, name)
        tag = stored.tag_of(found) or ""
        if names_tag(if_none_match or "", tag):
            return Response(status_code=304, headers={"ETag": tag})
        response.headers["ETag"] = tag
        return documents.version.of(found)

    def list_versions(name: Any, query: Annotated[Page, Query()], serving: Serving, caller: Reading) -> Answer:  # fmt: skip
        stored.find(serving, caller, kind, name)
        found = versions.versions(
            serving.database, kind, name, query.page_size, query.page_token, with_content=True
        )
        return listed(found, caller, documents.versions, "versions")

    def delete(name: Any, serving: Serving, caller: Converting, if_match: IfMatch = None) -> None:
        stored.delete(serving, caller, kind, name, Expectation(if_match))

    return list_names, put, get, list_versions, delete


LAYOUTS = routes_of(
    StoredDocuments(
        LAYOUT, LayoutBody, StoredLayout, ListedLayout, LayoutPage, VersionPage,
        "The layout's form is checked now; the preview checks whether it fits a checkpoint.",
        (examples.LAYOUTS, examples.STORED),
    )
)  # fmt: skip
MAPS = routes_of(
    StoredDocuments(
        MAP, MapBody, StoredMap, ListedMap, MapPage, MapVersionPage,
        "The map's form is checked now; a plan checks whether it fits a checkpoint. Rules for meshes may stand beside it.",
        (examples.MAPS, examples.STORED_MAP),
    )
)  # fmt: skip


@LAYOUTS.post(
    ":preview",
    response_model=LAYOUT_ANSWER,
    responses=problems(
        NOT_FOUND,
        BAD_LAYOUT,
        BAD_PLAN,
        NO_CHECKPOINT,
        BAD_CHECKPOINT,
        STORAGE,
        UNAVAILABLE,
        *OF_A_BUCKET,
    ),
)
async def preview_layout(
    body: Annotated[PreviewRequest, Body(openapi_examples=examples.PREVIEWS)],
    request: Request,
    serving: Serving,
    caller: Reading,
) -> Response:
    """Shows how a layout would split each tensor of a checkpoint: shards, their shapes and bytes, bytes per device.

    Reads metadata only. Rules that match nothing become warnings; a layout that does not fit is refused, as for a
    conversion.
    """
    question = await serving.find(questions.preview, caller, body)
    return await answered(request, serving, question)
