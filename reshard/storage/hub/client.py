"""Requests to the hub through the client of huggingface_hub, made again for some time; their failures as StorageErrors.

huggingface_hub knows the token and the settings of the user: ``HF_TOKEN``, ``HF_ENDPOINT`` and others. Its HTTP client keeps
connections, and leaves the token out where it follows a redirect to another server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from reshard.errors import MissingPackageError, ReshardError
from reshard.storage.base import Requests
from reshard.storage.buckets import counts
from reshard.storage.buckets.clouds import checked_endpoint
from reshard.storage.buckets.errors import OF_HUB, bucket_error
from reshard.storage.hub.address import HubAddress
from reshard.version import __version__, how_to_install

if TYPE_CHECKING:
    from httpx2 import Response

T = TypeVar("T")
Attempt = Callable[[], tuple[str, dict[str, str]]]
"""The URL and the headers of the next attempt."""

RETRY_S = 40.0
"""No attempt begins later than this after the first: a hub that is away is reported within a minute."""

STALL_S = 20.0
"""Seconds without a connection, or without progress of an answer, after which a request is made again."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0

_BUSY = frozenset({408, 429, 500, 502, 503, 504})


def library() -> Any:
    """huggingface_hub; MissingPackageError without it."""
    try:
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError:
        raise MissingPackageError(f"hf:// needs the package huggingface_hub; {how_to_install('hf')}") from None  # fmt: skip
    return huggingface_hub


def endpoint() -> str:
    """The URL of the hub. Raises StorageError if it is none."""
    return checked_endpoint("HF_ENDPOINT", library().constants.ENDPOINT)


def page_of(address: HubAddress) -> str:
    """The URL of a repository's page."""
    return f"{endpoint()}/{'' if address.kind == 'models' else f'{address.kind}/'}{address.repo}"


def ask(at: HubAddress, counted: Requests, attempt: Attempt, take: Callable[[Response], T], what: str = "") -> T:  # fmt: skip
    """The result of ``take`` for the hub's answer, whose body is still to be read.

    The hub is asked again while it is busy or away, and where another server fails to which it sends the client.

    Args:
        at, what: the place, and its purpose in messages.
        counted: the request, however often it is made.
        attempt: asked for each attempt, since ``take`` may have read a part of the last answer.

    Raises StorageError for a refusal, and for a hub that is still away after ``RETRY_S``.
    """
    import httpx2

    counts.add(counted)
    hub, end, pause = f"{endpoint()}/", time.monotonic() + RETRY_S, FIRST_PAUSE_S
    while True:
        try:
            url, headers = attempt()
            # No other server gets the token.
            if url.startswith(hub) and (token := library().utils.get_token_to_send(None)):
                headers["authorization"] = f"Bearer {token}"
            options = {"headers": {"user-agent": f"reshard/{__version__}", **headers}, "timeout": STALL_S, "follow_redirects": True}  # fmt: skip
            with library().get_session().stream("GET", url, **options) as answer:
                if answer.is_success:
                    return take(answer)
                is_of_hub = str(answer.url).startswith(hub)
                is_final, failed = is_of_hub and answer.status_code not in _BUSY, _refusal(answer, is_of_hub)  # fmt: skip
        except ReshardError:
            raise
        except Exception as error:  # noqa: BLE001  an answer may be anything, and no header may hold the token
            is_final, failed = not isinstance(error, httpx2.HTTPError), error
        if is_final or time.monotonic() + pause > end:
            raise bucket_error("read", f"{at} ({page_of(at)})", failed, what)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _refusal(answer: Response, is_of_hub: bool) -> Exception:
    """The answer as an error whose text ``bucket_error`` understands."""
    code, said = (answer.headers.get(f"x-error-{name}", "") for name in ("code", "message"))
    has_token, status = "authorization" in answer.request.headers, answer.status_code
    unnamed = {401: "InvalidToken" if has_token else "RepoNotFound", 403: "ForbiddenByHub", 404: "RepoNotFound"}  # fmt: skip
    code = code if code in OF_HUB else unnamed.get(status, code or f"status {status}")
    said = f"{said}; {'a' if has_token else 'no'} token was sent".removeprefix("; ")
    if not is_of_hub:  # it has no reason to refuse what the hub signed: it fails
        code, said, status = answer.url.host, f"status {status}", 503
    return ValueError(f"HTTP status: {status} <Code>{code}</Code><Message>{said}</Message>")
