"""The application in this process, and a checkpoint below its root."""

from tests.server.checkpoint import run_of
from tests.server.routes.conftest import serve, served

__all__ = ["run_of", "serve", "served"]
