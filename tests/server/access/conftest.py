"""The application in this process."""

from tests.server.routes.conftest import serve, served

__all__ = ["serve", "served"]
