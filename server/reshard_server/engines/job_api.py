"""The API of Kubernetes, as far as the service needs it: creates, gets and deletes Jobs in one namespace.

Each call sends one request; ``JobApiError.may_pass`` says if the same request may succeed later.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx

from reshard.errors import ReshardError
from reshard_server.settings import KubernetesSettings

Job = dict[str, Any]
"""A Job as the API has it (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/)."""

ANSWER_SECONDS = 5.0
"""Seconds without a byte after which a request counts as unanswered; an API server answers these within 1 (its own objective)."""

_TOKEN = re.compile(r"[!-~]+")
_SHOWN_CHARACTERS = 500

_REMEDIES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "check that {token} is the token of a service account of this cluster",
    HTTPStatus.FORBIDDEN: "if the role is missing, grant create, get and delete of jobs.batch in the namespace {namespace!r} "
    "(deploy/kubernetes/engine.yaml); if it is a quota, make room and retry",
    HTTPStatus.NOT_FOUND: "check that the namespace {namespace!r} exists",
    HTTPStatus.UNPROCESSABLE_ENTITY: "correct the template {template}",
    HTTPStatus.BAD_REQUEST: "correct the template {template}",
}


class JobApiError(ReshardError):
    """A request that the API refused, or did not answer.

    Attributes:
        status: of the answer; 0 without an answer of the API.
        pause: seconds that the API asks to wait before the next request; 0 if it does not ask.
    """

    def __init__(self, message: str, status: int = 0, pause: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.pause = status, pause

    @property
    def may_pass(self) -> bool:
        """True if the API was out of reach, overloaded or broken: the same request may succeed later."""
        passing = (0, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
        return self.status in passing or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


@dataclass(frozen=True)
class JobApi:
    """The Jobs of one namespace; ``open_api`` makes it."""

    client: httpx.Client
    settings: KubernetesSettings

    def create(self, document: Mapping[str, Any]) -> Job:
        """Creates a Job. JobApiError with the status 409 if there is one with this name."""
        return self._send("POST", "?fieldValidation=Strict", document)

    def get(self, name: str) -> Job | None:
        """The Job; None if there is none."""
        try:
            return self._send("GET", f"/{name}")
        except JobApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def delete(self, job: Job) -> None:
        """Begins to delete a Job and its pods; it is there until all pods have ended. Another one of this name stays."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            # Against the deletion of a Job that another server made since under this name.
            "preconditions": {"uid": job["metadata"]["uid"]},
        }
        try:
            self._send("DELETE", f"/{job['metadata']['name']}", options)
        except JobApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Job:
        url = f"apis/batch/v1/namespaces/{self.settings.namespace}/jobs{path}"
        headers = {"Authorization": f"Bearer {self._token()}"}
        try:
            answer = self.client.request(method, url, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise JobApiError(
                f"the Kubernetes API at {self.client.base_url} did not answer {method} {url}: {error or type(error).__name__}; check "
                "that it runs and can be reached from here"
            ) from error
        try:
            document = answer.json()
        except ValueError:
            document = None
        if answer.is_success and isinstance(document, dict):
            return document
        raise self._refusal(answer, document)

    def _token(self) -> str:
        file = self.settings.token_file
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise JobApiError(
                f"the token for the Kubernetes API cannot be read from {str(file)!r}: {error}; mount a service account's token "
                "(automountServiceAccountToken), or name another file as engines.kubernetes.token_file",
                HTTPStatus.UNAUTHORIZED,
            ) from error
        # Against a file that is no token: the error of the HTTP library would show its content.
        if not _TOKEN.fullmatch(token):
            raise JobApiError(
                f"{str(file)!r} holds no token for the Kubernetes API, which is one line of printable characters; name another file as "
                "engines.kubernetes.token_file",
                HTTPStatus.UNAUTHORIZED,
            )
        return token

    def _refusal(self, answer: httpx.Response, document: object) -> JobApiError:
        if not isinstance(document, dict) or document.get("kind") != "Status":
            # Against a gateway before the API: its 404 does not say that there is no Job.
            return JobApiError(
                f"{answer.request.url.copy_with(query=None)} was answered with {answer.status_code} and not as the Kubernetes API answers; check "
                "that engines.kubernetes.api is its URL"
            )
        own = self.settings
        remedy = _REMEDIES.get(answer.status_code, "look at the API server's log").format(
            token=str(own.token_file), namespace=own.namespace, template=str(own.template)
        )
        asked = answer.headers.get("Retry-After", "")
        return JobApiError(
            f"the Kubernetes API answered {answer.request.method} {answer.request.url.path} with {answer.status_code}: "
            f"{str(document.get('message'))[:_SHOWN_CHARACTERS]}; {remedy}",
            answer.status_code,
            float(asked) if asked.isdecimal() else 0.0,
        )


@contextmanager
def open_api(settings: KubernetesSettings) -> Iterator[JobApi]:
    """The API of these settings. ReshardError if they say of no API, and this process is in no pod."""
    url = settings.api or _own_cluster()
    verified: ssl.SSLContext | bool = False
    if url.startswith("https:"):
        try:
            verified = ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:
            raise ReshardError(
                f"the certificates of the Kubernetes API cannot be read from {str(settings.ca_file)!r}: {error}; name a file with them as "
                "engines.kubernetes.ca_file"
            ) from error
    # Against a proxy of the environment, which would get the token.
    with httpx.Client(
        base_url=url, verify=verified, timeout=ANSWER_SECONDS, trust_env=False
    ) as client:
        yield JobApi(client, settings)


def _own_cluster() -> str:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{what}") for what in ("HOST", "PORT"))
    if not host:
        raise ReshardError(
            "engines.kubernetes has no api, and this process is in no pod of a cluster (KUBERNETES_SERVICE_HOST is not set); set "
            "engines.kubernetes.api to the URL of the API server"
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"
