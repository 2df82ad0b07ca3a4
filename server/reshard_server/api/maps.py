"""Routes that store, read and delete named maps."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from reshard_server.api.caller import MAY_READ, Converting, Serving
from reshard_server.api.openapi.description import problems
from reshard_server.api.openapi.examples import MAPS, STORED_MAP
from reshard_server.api.read_mask import MaskedRoute
from reshard_server.api.stored import (
    IfMatch,
    IfNoneMatch,
    not_modified,
    tell_stored,
    versions_of,
    with_example,
)
from reshard_server.db.stored import names
from reshard_server.db.stored.kinds import MAP
from reshard_server.errors.problems import BAD_LAYOUT, FORBIDDEN, PRECONDITION, QUOTA
from reshard_server.resources import stored
from reshard_server.resources.stored import Expectation, MapVersion
from reshard_server.schemas.base import Name, Page, PrefixQuery
from reshard_server.schemas.map import ListedMap, MapBody, MapPage, MapVersionPage, StoredMap

ROUTER = APIRouter(prefix="/v1/maps", tags=["maps"], route_class=MaskedRoute)

MapName = Annotated[Name, Path(description="Name of a map.")]
_STORED = with_example(STORED_MAP)


@ROUTER.get("", dependencies=[MAY_READ])
def list_maps(query: Annotated[PrefixQuery, Query()], serving: Serving) -> MapPage:
    """Lists the newest version of each map, by name. Every token with the scope read sees all maps.

    Contents larger than 4096 bytes are left out.
    """
    found = names.newest(
        serving.database,
        MAP,
        query.page_size,
        query.page_token,
        prefix=query.prefix,
        with_content=True,
    )
    listed = list(map(ListedMap.of, found.versions))
    return MapPage(maps=listed, next_page_token=found.next_page_token)


@ROUTER.put(
    "/{name}",
    response_model=StoredMap,
    responses={
        200: {
            "description": "The newest version has this content already; nothing changed.",
            **_STORED,
        },
        201: {"description": "A new version.", "model": StoredMap, **_STORED},
        **problems(BAD_LAYOUT, FORBIDDEN, PRECONDITION, QUOTA),
    },
)
def put_map(
    name: MapName,
    body: Annotated[MapBody, Body(openapi_examples=MAPS)],
    serving: Serving,
    caller: Converting,
    response: Response,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> StoredMap:
    """Stores a map as the newest version of its name. The name belongs to the token that stored it first.

    The map's form is checked now; a plan checks whether it fits a checkpoint. Rules for meshes may stand beside it.
    """
    expected = Expectation(if_match, if_none_match)
    found, is_new = stored.put(serving, caller, MAP, name, body.map, expected)
    tell_stored(MAP, found, response, is_new=is_new)
    return StoredMap.of(found)


@ROUTER.get(
    "/{name}",
    dependencies=[MAY_READ],
    response_model=StoredMap,
    responses={
        200: {"description": "The map.", **_STORED},
        304: {"description": "It has not changed since this ETag."},
    },
)
def get_map(
    name: MapVersion,
    serving: Serving,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> StoredMap | Response:
    """Returns a map: its newest version, or ``name@version``."""
    found = stored.find(serving, MAP, name)
    return not_modified(found, response, if_none_match) or StoredMap.of(found)


@ROUTER.get("/{name}/versions", dependencies=[MAY_READ])
def list_map_versions(
    name: MapName, query: Annotated[Page, Query()], serving: Serving
) -> MapVersionPage:
    """Lists all versions of a map, newest first. Contents larger than 4096 bytes are left out."""
    found = versions_of(serving, MAP, name, query)
    listed = list(map(ListedMap.of, found.versions))
    return MapVersionPage(versions=listed, next_page_token=found.next_page_token)


@ROUTER.delete("/{name}", status_code=204, responses=problems(FORBIDDEN, PRECONDITION))
def delete_map(
    name: MapName, serving: Serving, caller: Converting, if_match: IfMatch = None
) -> None:
    """Deletes all versions of a map; conversions that were accepted with one are still carried out."""
    stored.delete(serving, caller, MAP, name, Expectation(if_match))
