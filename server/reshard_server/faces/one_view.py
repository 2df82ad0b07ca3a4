"""The faces of one view, without a server's records: what the command ``reshard view`` serves."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.status import HTTP_200_OK

from reshard import Blocks, CheckpointView
from reshard.errors import MissingError, ReshardError, SourceChangedError
from reshard.storage.location import locate
from reshard_server.auth.limits import Drain, RateLimits
from reshard_server.auth.tokens import ANYONE, Caller, Tokens
from reshard_server.errors.error_handlers import add_refusals
from reshard_server.errors.problems import CHANGED, GONE, NOT_FOUND, Kind, ProblemError, problem_of
from reshard_server.faces import huggingface, s3
from reshard_server.middleware.authenticate import Authenticate
from reshard_server.middleware.body_limits import BodyLimits
from reshard_server.middleware.http_protocol import CloseUnlessBodyRead, OriginForm, ReadRequests
from reshard_server.middleware.request_log import RequestLog
from reshard_server.observability.metrics import Metrics
from reshard_server.settings import Settings, TokenSettings
from reshard_server.views.byte_stream import ByteStream, Started
from reshard_server.views.catalogue import MAIN, NAMESPACE, Catalogue, Key, ServedView
from reshard_server.worker.wording import RootNames

LOG = logging.getLogger(__name__)

ACCESS_KEY = "view"
"""Of the S3 face. Its secret is the token; without one, any signature will do."""

CACHE_BYTES = 256 << 20
"""Enough for eight ranks that read the same tensors, the fastest of which is ahead of the slowest."""

_KINDS: dict[type, Kind] = {SourceChangedError: CHANGED, MissingError: GONE}


def clean_name(text: str) -> str:
    """The text as the name of a view: letters, digits and ``_``, between them single dots and hyphens, as clients of hubs want it.

    >>> clean_name("..run 7/step-1000--final")
    'run-7-step-1000-final'
    """
    return re.sub(r"\.\.+", ".", re.sub(r"[^A-Za-z0-9_.]+", "-", text))[:90].strip("-.")


class OneView(Catalogue):
    """A catalogue of one view, which every caller may read; the token is the secret of the one access key."""

    def __init__(self, name: str, view: CheckpointView, token: str) -> None:
        self._served = ServedView(name, view.revision, view, time.time())
        self._names = RootNames.of({f"{NAMESPACE}/{name}": locate(view.source)})
        self._token, self._blocks = token, Blocks(CACHE_BYTES)

    async def names(self, caller: Caller) -> Sequence[str]:  # noqa: ARG002  all are alike
        """The one name."""
        return [self._served.name]

    async def find(self, caller: Caller, name: str, revision: str = MAIN) -> ServedView:  # noqa: ARG002
        """The one revision; ProblemError (404) for other names and revisions."""
        one = self._served
        if name != one.name or revision not in (MAIN, one.commit):
            raise ProblemError(
                NOT_FOUND,
                f"there is no {NAMESPACE}/{name[:200]} at {revision[:200]!r}; here is {NAMESPACE}/{one.name} at {MAIN}, which is {one.commit}",
            )
        return one

    async def send(
        self, caller: Caller, served: ServedView, path: str, start: int, stop: int, status: int, headers: dict[str, str]  # noqa: ARG002
    ) -> ByteStream:  # fmt: skip
        """The bytes, as ``Catalogue`` says; a source that was changed, or is gone, is told in the log."""
        pieces = self._blocks.read(served.view.files[path], start, stop)
        try:
            if status == HTTP_200_OK:  # the first blocks may be those of a source that is gone
                await run_in_threadpool(served.view.check_unchanged)
            started = await run_in_threadpool(Started, pieces)
        except ReshardError as error:
            LOG.warning(
                "if SRC was changed, start reshard view again", extra={"detail": str(error)}
            )
            problem = problem_of(error)
            problem.kind = _KINDS.get(type(error), problem.kind)
            raise problem.renamed(self._names.text) from error
        return ByteStream(started, lambda: None, status, headers)

    async def key(self, access_key: str) -> Key | None:
        """The one access key."""
        return Key(self._token, ANYONE) if access_key == ACCESS_KEY else None


def make_app(name: str, view: CheckpointView, token: str = "") -> FastAPI:
    """The application with the faces of a view. With a token every caller must send it; without one only this machine is answered."""
    # The defaults, whatever the variables of a server say.
    settings = Settings.model_construct(insecure=not token)
    known = {"name": ACCESS_KEY, "sha256": sha256(token.encode()).hexdigest(), "scopes": {"read"}, "read": {"*"}}  # fmt: skip
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.catalogue = OneView(name, view, token)
    app.state.services = SimpleNamespace(
        settings=settings,
        tokens=Tokens((TokenSettings.model_validate(known),) if token else (), settings.insecure),
        rates=RateLimits(10**9),  # none: a client may read many small ranges
        names=RootNames.of({}, Path(__file__).parent),
        sessions=SimpleNamespace(caller=lambda _: None),  # a browser may send a server's cookie
    )
    app.state.drain, app.state.refused = Drain(), None
    add_refusals(app)
    app.include_router(huggingface.ROUTER)
    app.include_router(s3.ROUTER)
    app.add_middleware(ReadRequests)
    app.add_middleware(BodyLimits, settings=settings)
    app.add_middleware(Authenticate, settings=settings)
    app.add_middleware(RequestLog, metrics=Metrics(), drain=app.state.drain)
    app.add_middleware(CloseUnlessBodyRead)
    app.add_middleware(OriginForm)
    return app
