"""The application in this process, and a checkpoint below its root."""

from tests.server.api.conftest import serve, served
from tests.server.checkpoint import run_of

__all__ = ["run_of", "serve", "served"]
