"""The application in this process."""

from tests.server.api.conftest import serve, served

__all__ = ["serve", "served"]
