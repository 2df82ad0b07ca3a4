"""The S3 face on a real socket, over a shelf of views that a test fills; and requests that are signed and sent as they are."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
import uvicorn
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from fastapi import FastAPI
from reshard_server import services
from reshard_server.app import create_app
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import NOT_FOUND, ProblemError
from reshard_server.middleware.http_protocol import protocol_of
from reshard_server.serve import address_of, listen
from reshard_server.settings import Settings, TokenSettings
from reshard_server.views.byte_stream import ByteStream, Started
from reshard_server.views.catalogue import MAIN, Key, ServedView
from reshard_server.worker.children import Children

from reshard.storage.location import locate
from reshard.views.view_file import ViewFile
from tests.server.forks import Lent
from tests.server.idle import Idle
from tests.server.records import put_records

SECRETS = {
    "ann": "a secret of sixteen letters or more",
    "deaf": "the secret of one who may not read",
    "late": "the secret of one who expired long ago",
}
NO_SECRET = "without"


def tokens() -> tuple[TokenSettings, ...]:
    """Tokens with S3 secrets: one that reads, one without the scope, one that expired; and one without a secret."""
    scopes = {"deaf": ["convert"]}
    expires = {"late": "2020-01-01"}
    return tuple(
        TokenSettings.model_validate(
            {
                "name": name,
                "sha256": f"{number:064x}",
                "scopes": scopes.get(name, ["read"]),
                "read": ["data"],
                "expires": expires.get(name),
                "s3_secret": SECRETS.get(name),
            }
        )
        for number, name in enumerate([*SECRETS, NO_SECRET])
    )


@dataclass
class Made:
    """A view of files that are there, for names that no format writes."""

    files: Mapping[str, ViewFile]

    @classmethod
    def of(cls, folder: Path, contents: Mapping[str, bytes]) -> Made:
        files = {}
        for number, (path, data) in enumerate(sorted(contents.items())):
            place = folder / f"file-{number}"
            place.write_bytes(data)
            known = locate(place)
            files[path] = ViewFile(path, len(data), f"{number + 10:040x}", None, known=known)  # type: ignore[arg-type]
        return cls(files)


@dataclass
class Shelf:
    """A catalogue: the views of each name by revision, and the problem that a view has instead.

    Attributes:
        planned: the names of views that were asked for.
        failing: problems of ``find`` by name, and of ``send`` by path.
    """

    app: FastAPI
    views: dict[str, dict[str, ServedView]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    planned: list[str] = field(default_factory=list)
    failing: dict[str, ProblemError] = field(default_factory=dict)

    def add(self, name: str, view: Any, commit: str, modified: float = 1_700_000_000.7) -> None:
        served = ServedView(name, commit, view, modified)
        self.views.setdefault(name, {}).update({MAIN: served, commit: served})

    async def names(self, caller: Caller) -> Sequence[str]:
        assert caller.name in (*SECRETS, "anyone")
        return sorted(self.views.keys() - self.hidden)

    async def find(self, caller: Caller, name: str, revision: str = MAIN) -> ServedView:
        assert "read" in caller.scopes
        self.planned.append(name)
        if name in self.failing:
            raise replace(self.failing[name])
        found = self.views.get(name, {}).get(revision)
        if found is None or name in self.hidden:
            raise ProblemError(NOT_FOUND, f"there is no view {name!r}; list the views")
        return found

    async def send(
        self, _: Caller, served: ServedView, path: str, start: int, stop: int, status: int, headers: dict[str, str]
    ) -> ByteStream:  # fmt: skip
        if path in self.failing:
            raise replace(self.failing[path])
        pieces = Started(served.view.files[path].read(start, stop))
        return ByteStream(pieces, lambda: None, status, headers)

    async def key(self, access_key: str) -> Key | None:
        found = self.app.state.services.tokens.s3_key(access_key)
        return None if found is None else Key(*found)


@dataclass
class Answer:
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def xml(self) -> ElementTree.Element:
        assert self.headers["content-type"] == "application/xml"
        return ElementTree.fromstring(self.body)  # noqa: S314  (our own server's)

    @property
    def code(self) -> str:
        """The code of S3's error."""
        assert self.status >= 400 and self.headers["x-amz-request-id"], self
        assert self.xml.tag == "Error" and (self.xml.findtext("Message") or "").strip()
        return self.xml.findtext("Code") or ""

    @property
    def message(self) -> str:
        return self.xml.findtext("Message") or ""


@dataclass
class S3Served:
    """A server with the S3 face, and its shelf."""

    url: str
    shelf: Shelf
    app: FastAPI

    def client(self, access_key: str = "ann", secret: str | None = None, **config: Any) -> Any:
        """boto3, as it is."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=f"{self.url}/s3",
            region_name="eu-anywhere-7",
            aws_access_key_id=access_key,
            aws_secret_access_key=secret or SECRETS.get(access_key, "some other secret"),
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, **config),
        )  # fmt: skip

    def ask(
        self, target: str, headers: Mapping[str, str] | Sequence[tuple[str, str]] = (), method: str = "GET"
    ) -> Answer:  # fmt: skip
        """Sends a request as it is: nothing is normalised, nothing added."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        if not any(name.lower() == "host" for name, _ in pairs):
            pairs.append(("Host", place.netloc))
        for name, value in pairs:
            connection.putheader(name, value)
        connection.endheaders()
        got = connection.getresponse()
        answer = Answer(got.status, dict(got.getheaders()), got.read())
        connection.close()
        return answer

    def signed(
        self, target: str, method: str = "GET", name: str = "ann", secret: str | None = None, **headers: str
    ) -> dict[str, str]:  # fmt: skip
        """The headers that botocore signs for a request."""
        request = AWSRequest(method, self.url + target, headers)
        credentials = Credentials(name, secret or SECRETS[name])
        S3SigV4Auth(credentials, "s3", "eu-anywhere-7").add_auth(request)
        return dict(request.headers.items())

    def get(self, target: str, method: str = "GET", **headers: str) -> Answer:
        """The answer to a request that ann signed."""
        return self.ask(target, self.signed(target, method, **headers), method)


@contextmanager
def serving_s3(folder: Path, children: Children, **settings: Any) -> Iterator[S3Served]:
    """A server in a thread of this process, with an empty shelf."""
    put_records(folder / "state")
    (folder / "data").mkdir()
    given = {"tokens": tokens(), "roots": {"data": folder / "data"}, "state": folder / "state"}
    chosen = Settings.model_validate({**given, **settings})
    with pytest.MonkeyPatch.context() as patch, listen("127.0.0.1", 0) as listening:
        patch.setattr(services, "JobQueue", Idle)
        patch.setattr(services, "Children", lambda: Lent(children))
        app = create_app(chosen)
        config = uvicorn.Config(
            app, http=protocol_of(chosen), ws="none", lifespan="on", log_config=None, access_log=False, proxy_headers=False,
            h11_max_incomplete_event_size=chosen.header_bytes * 2,
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        app.state.catalogue = Shelf(app)
        yield S3Served(address_of(listening), app.state.catalogue, app)
        server.should_exit = True
        thread.join()
