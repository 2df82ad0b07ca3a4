"""An application in this process whose conversions nobody carries out, so that tests choose their states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from reshard_server import services
from reshard_server.app import create_app, prepare_routes
from reshard_server.settings import Settings
from reshard_server.worker.children import Children

from tests.server import patient
from tests.server.forks import Lent
from tests.server.idle import Idle
from tests.server.records import put_records
from tests.server.tokens import bearer, token_settings


@dataclass
class Served:
    """An application that serves, and its services."""

    app: FastAPI
    client: httpx.AsyncClient
    portal: BlockingPortal

    @property
    def db(self) -> sa.Engine:
        found: sa.Engine = self.app.state.services.database
        return found

    @property
    def wakes(self) -> int:
        """How often the queue was woken."""
        found: int = self.app.state.services.queue.wakes
        return found

    def ask(self, method: str, path: str, who: str | None = "ann", **more: Any) -> httpx.Response:
        headers = {**(bearer(who) if who else {}), **more.pop("headers", {})}
        return self.portal.call(lambda: self.client.request(method, path, headers=headers, **more))

    def create(self, who: str = "ann", **members: Any) -> str:
        """The id of a new conversion."""
        body = {"source": "data/a", "target": "data/b", **members}
        answer = self.ask("POST", "/v1/conversions", who, json=body)
        assert answer.status_code == 202, answer.text
        found: str = answer.json()["id"]
        return found


@pytest.fixture
def serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children
) -> Iterator[Callable[..., Served]]:
    """Makes an application with these settings, which waits for storage as long as it takes."""
    monkeypatch.setattr(services, "JobQueue", Idle)
    monkeypatch.setattr(services, "Children", lambda: Lent(children))
    for module, name in patient.waits():
        monkeypatch.setattr(module, name, patient.SECONDS)
    with ExitStack() as opened:
        yield lambda **settings: opened.enter_context(serving(tmp_path, settings))


@contextmanager
def serving(folder: Path, settings: dict[str, Any]) -> Iterator[Served]:
    roots = {name: folder / name for name in ("data", "other")}
    for root in roots.values():
        root.mkdir(exist_ok=True)
    given = {"tokens": token_settings(), "roots": roots, "state": folder / "state"}
    if not {"state", "database_url"} & settings.keys():
        put_records(folder / "state")
    app = create_app(Settings.model_validate({**given, **settings}))
    prepared = _prepared()
    app.router.routes = prepared.router.routes
    app.openapi = prepared.openapi  # type: ignore[method-assign]
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://test"
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        portal.wrap_async_context_manager(client),
    ):
        yield Served(app, client, portal)


@cache
def _prepared() -> FastAPI:
    """The routes and the description of every application; to prepare them takes half a second."""
    app = create_app(Settings(insecure=True))
    prepare_routes(app)
    return app


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()
