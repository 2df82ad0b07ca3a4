"""Every route that may change something, found among all routes."""

from __future__ import annotations

from fastapi.routing import APIRoute
from reshard_server.app import ROUTERS
from reshard_server.auth.sessions import SAFE_METHODS


def changing_routes() -> list[tuple[str, str]]:
    """Method and path of every route that may change something; ``some`` stands for each name in a path."""
    found = []
    for router in ROUTERS:
        for route in (r for r in router.routes if isinstance(r, APIRoute)):
            path = route.path.replace("{id}", "some").replace("{name}", "some")
            found += [(m, path) for m in sorted(route.methods - SAFE_METHODS)]
    return found
