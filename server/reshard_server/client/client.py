"""Client: a server's whole API, typed.

>>> client = Client("http://127.0.0.1:8080", token="rsh_...")  # doctest: +SKIP
>>> client.convert("data/run/1000", "data/served", layout="serving").wait(progress=True)  # doctest: +SKIP
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar

import httpx
from pydantic import TypeAdapter, ValidationError

from reshard.errors import ReshardError
from reshard_server.client.handle import URL, ConversionHandle, DeltaHandle, path_of
from reshard_server.client.resources import (
    Checkpoints,
    Layouts,
    Maps,
    Plans,
    Schedules,
    Views,
    with_layout,
)
from reshard_server.client.tensors import Tensors
from reshard_server.client.transport import IDEMPOTENCY_KEY, Transport
from reshard_server.errors.value_errors import mistakes
from reshard_server.schemas.conversion import (
    Conversion,
    ConversionPage,
    ConversionRequest,
    OneDelta,
)

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0

_REQUEST: TypeAdapter[Any] = TypeAdapter(ConversionRequest)
_DELTA: TypeAdapter[Any] = TypeAdapter(OneDelta)
DELTAS_URL = "/v1/deltas"


class Client:
    """A client of one server with one token. Refusals raise the ReshardError that the problem names.

    Attributes:
        conversions, deltas, plans, layouts, maps, schedules, checkpoints, tensors: the API's resources.
    """

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = ANSWER_SECONDS
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            http = httpx.Client(
                base_url=_checked(url),
                headers={**headers, "Accept-Encoding": "identity"},
                timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            )
        except UnicodeEncodeError:
            raise ReshardError(
                "the token is not valid: it has characters other than ASCII"
            ) from None
        self._transport = Transport(http)
        self.conversions = Conversions(self._transport)
        self.deltas = Deltas(self._transport)
        self.plans = Plans(self._transport)
        self.layouts = Layouts(self._transport)
        self.maps = Maps(self._transport)
        self.views = Views(self._transport)
        self.schedules = Schedules(self._transport)
        self.checkpoints = Checkpoints(self._transport)
        self.tensors = Tensors(self._transport)

    def convert(
        self,
        source: str,
        target: str | None = None,
        *,
        targets: Sequence[Mapping[str, Any]] | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> ConversionHandle:
        """Starts a conversion to one target, or to several; the source is read once.

        Args:
            source, target: ROOT/path on the server.
            targets: instead of ``target``: objects with ``target`` and options of each.
            idempotency_key: the same key and request return the same conversion; None makes a key.
            options: of ``POST /v1/conversions``: step (of a training run; a number or
                ``"latest"``), item, layout (a stored layout's name, a file's content, or a LayoutMap), map (a stored map's
                or a recipe's name, or a file's content), sizes, reverse, mesh, select, drop, rename,
                cast, compression, max_memory, workers, priority, labels, notify, ...
        """
        requested = (
            {"target": target} if targets is None else {"targets": [*map(with_layout, targets)]}
        )
        body = {"source": source, **requested, **with_layout(options)}
        return ConversionHandle(self._transport, self._started(URL, body, idempotency_key))

    def delta(
        self, old: str, new: str, target: str, *, idempotency_key: str | None = None, **options: Any
    ) -> DeltaHandle:
        """Starts a delta from ``old`` to the result of converting ``new`` to safetensors.

        Args:
            old, new, target: ROOT/path on the server; the name of ``target`` has the version (weight_v000007).
            idempotency_key: the same key and request return the same delta; None makes a key.
            options: of ``POST /v1/deltas``: step and item of ``new``, map, sizes, reverse, select, drop, rename, cast, encoding, checksum,
                base_version, or_full, max_memory, labels, notify, ...
        """
        body = {"old": old, "new": new, "target": target, **with_layout(options)}
        return DeltaHandle(self._transport, self._started(DELTAS_URL, body, idempotency_key))

    def _started(self, url: str, body: Mapping[str, Any], key: str | None) -> Conversion:
        """The conversion that a request starts; its model validates it before it is sent."""
        given = {k: v for k, v in body.items() if v is not None}
        model = _DELTA if url == DELTAS_URL else _REQUEST
        try:
            model.validate_python(given)
        except ValidationError as error:
            place, said = mistakes(error.errors())[0]
            named = place if model is _DELTA else place[1:]  # without the tag of the form
            where = ".".join(map(str, named)) or "the request"
            raise ReshardError(f"{where}: {said}; the options are those of POST {url}") from None
        headers = {IDEMPOTENCY_KEY: key or secrets.token_urlsafe(24)}
        return self._transport.model(Conversion, "POST", url, json=given, headers=headers)

    def close(self) -> None:
        """Closes the connections; the client cannot be used afterwards."""
        self._transport.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _Jobs:
    """The listing of jobs of one kind."""

    transport: Transport

    _url: ClassVar[str]

    def list(self, **query: Any) -> ConversionPage:
        """A page, newest first; takes ``state``, ``source``, ``label``, ``page_size``, ``page_token``, ..."""
        return self.transport.model(ConversionPage, "GET", self._url, params=query)

    def each(self, **query: Any) -> Iterator[Conversion]:
        """All that ``list`` would list, page after page."""
        return self.transport.each(ConversionPage, self._url, query, "conversions")


class Conversions(_Jobs):
    """The server's conversions."""

    _url = URL

    def get(self, conversion: str) -> ConversionHandle:
        """The conversion with this id."""
        found = self.transport.model(Conversion, "GET", path_of(conversion))
        return ConversionHandle(self.transport, found)

    def delete(self, conversion: str) -> None:
        """Deletes the record of an ended conversion; its outputs stay."""
        self.transport.ask("DELETE", path_of(conversion))


class Deltas(_Jobs):
    """The server's deltas. Other operations on a delta are those of its conversion, which has the same id."""

    _url = DELTAS_URL

    def get(self, delta: str) -> DeltaHandle:
        """The delta with this id."""
        return DeltaHandle(self.transport, self.transport.model(Conversion, "GET", path_of(delta)))


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise ReshardError(
            f"the server {httpx.URL(url).copy_with(userinfo=b'') if parsed.userinfo else url!r} is not the URL of a server; "
            "expected http://HOST:PORT or https://HOST"
        )
    return url.rstrip("/")
