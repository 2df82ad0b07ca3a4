"""``/docs``: the API's description as a page, from the same document as ``/openapi.json``; without scripts."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from reshard_server.pages.api_description import models, operations, paragraphs
from reshard_server.pages.rendering import page

ROUTER = APIRouter(include_in_schema=False)


@ROUTER.get("/docs")
def show_docs(request: Request) -> Response:
    """Shows the page; like the document, it needs no token."""
    document = request.app.openapi()
    return page(
        "api_docs.html",
        None,
        about=paragraphs(document["info"]["description"]),
        version=document["info"]["version"],
        tags=[
            (tag["name"], tag["description"], list(operations(document, tag["name"])))
            for tag in document["tags"]
        ],
        models=list(models(document)),
    )
