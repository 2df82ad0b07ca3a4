"""The list of maps, and the page of one version."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from reshard.maps.recipes import recipe_names
from reshard_server.api.caller import Serving
from reshard_server.db.stored.kinds import MAP
from reshard_server.pages.rendering import page
from reshard_server.pages.stored_names import content_and_versions, names_page
from reshard_server.pages.visitor import Visiting
from reshard_server.resources.stored import MapVersion, find

ROUTER = APIRouter(prefix="/maps", include_in_schema=False)

PageToken = Annotated[str | None, Query(max_length=1024)]


@ROUTER.get("")
def list_maps(visitor: Visiting, serving: Serving, page_token: PageToken = None) -> Response:
    """Lists maps by name, in their newest versions, and the recipes."""
    return names_page(serving, visitor, MAP, page_token, recipe_names())


@ROUTER.get("/{name}")
def show_map(
    name: MapVersion, visitor: Visiting, serving: Serving, page_token: PageToken = None
) -> Response:
    """Shows one version, the newest by default, and the list of versions."""
    found = find(serving, MAP, name)
    shown = content_and_versions(serving, MAP, found, page_token)
    return page("stored/map.html", visitor, map=found, **shown)
