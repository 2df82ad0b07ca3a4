"""What the routes of stored layouts and maps share: headers of requests and answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Response

from reshard_server.api.caller import Serving
from reshard_server.api.openapi.examples import header_descriptions
from reshard_server.db.stored import names
from reshard_server.db.stored.kinds import StoredKind, StoredVersion, VersionList
from reshard_server.resources.stored import gone, is_known, tag_of
from reshard_server.schemas.base import Page

IfMatch = Annotated[
    str | None,
    Header(
        description="Change it only if it still has this ETag; * if it exists.", max_length=1024
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(description="Only if it has none of these ETags; * if it does not exist."),
]


def with_example(example: Any) -> dict[str, Any]:
    """The content of an answer that has a version, for the API's description."""
    return {"content": {"application/json": {"example": example}}, **header_descriptions("ETag")}


def tell_stored(
    kind: StoredKind, found: StoredVersion, response: Response, *, is_new: bool
) -> None:
    """Sets status and headers of an answer to PUT."""
    response.status_code = 201 if is_new else 200
    response.headers["ETag"] = tag_of(found) or ""
    if is_new:
        response.headers["Location"] = f"/v1/{kind.noun}s/{found.name}@{found.version}"


def not_modified(
    found: StoredVersion, response: Response, if_none_match: str | None
) -> Response | None:
    """The answer 304 if the client has this version; else None, with the ETag in the response's headers."""
    tag = tag_of(found) or ""
    if is_known(if_none_match, found):
        return Response(status_code=304, headers={"ETag": tag})
    response.headers["ETag"] = tag
    return None


def versions_of(serving: Serving, kind: StoredKind, name: str, query: Page) -> VersionList:
    """A page of the versions of a name. ProblemError if it has none."""
    found = names.versions(
        serving.database, kind, name, query.page_size, query.page_token, with_content=True
    )
    if not found.versions and not query.page_token:
        raise gone(kind, name)
    return found
