"""Assembles the application: routes, error handlers and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from fastapi import FastAPI

from reshard.errors import ReshardError
from reshard_server.api import (
    checkpoints,
    conversions,
    operation,
    schedules,
    stored,
    tensors,
    views,
)
from reshard_server.api.openapi.description import describe
from reshard_server.auth.limits import Drain
from reshard_server.auth.proxies import Forwarded, Proxies
from reshard_server.errors.error_handlers import add_refusals
from reshard_server.faces import huggingface, s3
from reshard_server.middleware.authenticate import Authenticate
from reshard_server.middleware.body_limits import BodyLimits
from reshard_server.middleware.http_protocol import CloseUnlessBodyRead, OriginForm, ReadRequests
from reshard_server.middleware.request_log import RequestLog
from reshard_server.observability.metrics import Metrics
from reshard_server.pages import (
    api_description,
    checkpoint_pages,
    conversion_pages,
    new_conversion,
    rendering,
    schedule_pages,
    view_pages,
    visitor,
)
from reshard_server.pages import stored as stored_pages
from reshard_server.pages.problem_pages import ProblemPages
from reshard_server.refuse_before_body import RefuseBeforeBody
from reshard_server.services import open_services
from reshard_server.settings import Settings
from reshard_server.views.recorded import RecordedViews

ROUTERS = (
    operation.ROUTER,
    conversions.ROUTER,
    conversions.DELTAS_ROUTER,
    conversions.EVENTS_ROUTER,
    checkpoints.PLANS_ROUTER,
    checkpoints.ROUTER,
    stored.LAYOUTS,
    stored.MAPS,
    views.VIEWS,
    schedules.ROUTER,
    tensors.PROOFS_ROUTER,
    tensors.ROUTER,
    conversion_pages.OVERVIEW,
    visitor.ROUTER,
    conversion_pages.ROUTER,
    new_conversion.ROUTER,
    schedule_pages.ROUTER,
    schedule_pages.NEW,
    checkpoint_pages.ROUTER,
    stored_pages.ROUTER,
    view_pages.ROUTER,
    api_description.ROUTER,
    rendering.ROUTER,
    huggingface.ROUTER,
    s3.ROUTER,
)


def create_app(settings: Settings) -> FastAPI:
    """An application with these settings; it opens its services when it starts."""
    drain, measured = Drain(), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as opened:
            try:
                services = opened.enter_context(open_services(settings, drain, measured))
            except ReshardError as error:
                app.state.refused = error
                raise
            app.state.services = services
            app.state.catalogue = RecordedViews(services)
            opened.callback(app.state.catalogue.close)
            prepare_routes(app)
            yield

    app = FastAPI(
        title="reshard",
        description="Converts sharded checkpoints from one device mesh to another.",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.drain = drain
    app.state.refused = None
    add_refusals(app)
    for router in ROUTERS:
        app.include_router(router)
    describe(app)
    app.add_middleware(ReadRequests)
    app.add_middleware(BodyLimits, settings=settings)
    app.add_middleware(RefuseBeforeBody, settings=settings)
    app.add_middleware(Authenticate, settings=settings)
    app.add_middleware(RequestLog, metrics=measured, drain=drain)
    app.add_middleware(ProblemPages)
    app.add_middleware(CloseUnlessBodyRead)
    app.add_middleware(Forwarded, proxies=Proxies.of(settings.forwarded_allow_ips))
    app.add_middleware(OriginForm)
    return app


def prepare_routes(app: FastAPI) -> None:
    """Lets every router prepare its routes now instead of at its first request."""
    nowhere = {"type": "http", "method": "GET", "path": "/:", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(dict(nowhere))
