"""Google Cloud Storage as a whole: its XML API, which obstore speaks, and its JSON API, which all other clients speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.emulators.apis.error_answers import ErrorAnswer
from tests.emulators.apis.gcs_json import ROOTS, GcsJson
from tests.emulators.apis.gcs_xml import GcsXml
from tests.emulators.messages import Request, Response

if TYPE_CHECKING:
    from tests.emulators.server import Server


class Gcs:
    """Both APIs on one port, over the same objects: paths tell which one is meant."""

    def __init__(self, server: Server) -> None:
        self._xml, self._json = GcsXml(server), GcsJson(server)
        server.objects.has_md5_etags = True

    def _of(self, request: Request) -> GcsXml | GcsJson:
        return self._json if request.path.startswith(ROOTS) else self._xml

    def operation(self, request: Request) -> str:
        return self._of(request).operation(request)

    def place(self, request: Request) -> tuple[str, str]:
        return self._of(request).place(request)

    def answer(self, request: Request) -> Response:
        return self._of(request).answer(request)

    def error(self, request: Request, error: ErrorAnswer) -> Response:
        return self._of(request).error(request, error)
