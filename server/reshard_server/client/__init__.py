"""A typed client of the service; it needs httpx and pydantic, and none of the server's packages."""

from __future__ import annotations

from reshard_server.client.client import Client
from reshard_server.client.handle import ConversionHandle, DeltaHandle
from reshard_server.client.transport import ServiceError, UnreachableError

__all__ = ["Client", "ConversionHandle", "DeltaHandle", "ServiceError", "UnreachableError"]
