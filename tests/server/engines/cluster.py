"""A Kubernetes API for Jobs of one namespace: what the OpenAPI of batch/v1 says about create, get and delete, and no more.

A posted Job is held against the published schema, with unknown fields refused, and against the rules of the API server's own
validation that concern Indexed Jobs. Refusals are Status objects.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from tests.server.engines.pods import Controller, Job

NAMESPACE = "reshard"
TOKEN = "eyJhbGciOi.first.token"
PATH = re.compile(r"/apis/batch/v1/namespaces/([^/]+)/jobs(?:/([^/]+))?")
VERBS = ("create", "get", "delete")
"""The verbs that the role of the service allows (``deploy/kubernetes/engine.yaml``)."""

DELETE_OPTIONS = {"apiVersion", "kind", "propagationPolicy", "preconditions"}


class Refusal(Exception):  # noqa: N818  it is an answer
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": str(self), "reason": self.reason, "code": self.code,
        }  # fmt: skip


@dataclass
class Cluster:
    """The API and the pods.

    Attributes:
        refuses: called before each request; raises Refusal for one that is refused, or ConnectionError for no answer.
        loses: called after each request; an answer is lost if it says so.
        rewrites: changes the bytes of each answer.
        asked: the method and the code of each answered request.
    """

    folder: Path
    programs: Path
    token: str = TOKEN
    jobs: dict[str, Job] = field(default_factory=dict)
    controllers: dict[str, Controller] = field(default_factory=dict)
    refuses: Callable[[str], None] = lambda _: None
    loses: Callable[[str], bool] = lambda _: False
    rewrites: Callable[[bytes], bytes] = lambda data: data
    asked: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()

    def answer(self, method: str, target: str, token: str, body: bytes) -> tuple[int, Job]:
        self.refuses(method)
        if token != f"Bearer {self.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        found = PATH.fullmatch(urlsplit(target).path)
        if not found:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        namespace, name = found[1], found[2]
        verb = {"POST": "create", "DELETE": "delete", "GET": "get" if name else "list"}.get(method)
        if namespace != NAMESPACE or verb not in VERBS:
            raise Refusal(403, "Forbidden", f'jobs.batch is forbidden: User "system:serviceaccount:reshard:reshard-engine" cannot {verb} '
                          f'resource "jobs" in API group "batch" in the namespace "{namespace}"')  # fmt: skip
        with self.lock:
            if method == "POST":
                strict = parse_qs(urlsplit(target).query).get("fieldValidation") == ["Strict"]
                return 201, self._create(json.loads(body), strict)
            if name not in self.jobs:
                raise Refusal(404, "NotFound", f'jobs.batch "{name}" not found')
            if method == "DELETE":
                self._delete(self.jobs[name], json.loads(body))
            return 200, self.jobs.get(name, {"kind": "Status", "status": "Success"})

    def _create(self, job: Job, strict: bool) -> Job:
        name = job["metadata"]["name"]
        try:
            kubernetes_validate.validate(job, "1.32.0", strict=strict)
        except kubernetes_validate.ValidationError as error:
            raise Refusal(400, "BadRequest", f"strict decoding error: {error.message}") from None
        if wrong := [*invalid(job)]:
            raise Refusal(422, "Invalid", f'Job.batch "{name}" is invalid: {wrong}')
        if name in self.jobs:
            raise Refusal(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        job["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-11-29T21:00:00Z"}
        job["status"] = {}
        self.jobs[name] = job
        self.controllers[name] = Controller(job, self.folder, self.programs)
        return job

    def _delete(self, job: Job, options: dict[str, Any]) -> None:
        if options.keys() - DELETE_OPTIONS or options["kind"] != "DeleteOptions":
            raise Refusal(400, "BadRequest", f"strict decoding error: {options}")
        wanted = options.get("preconditions", {}).get("uid", job["metadata"]["uid"])
        if wanted != job["metadata"]["uid"]:
            raise Refusal(409, "Conflict", f"Precondition failed: UID in precondition: {wanted}")
        self.delete(job["metadata"]["name"], options.get("propagationPolicy", "Background"))

    def delete(self, name: str, policy: str = "Background") -> None:
        """Deletes a Job as ``kubectl delete job`` does, which does it in the background by default."""
        with self.lock:
            job, controller = self.jobs[name], self.controllers[name]
            if policy == "Background":
                del self.jobs[name]
            else:
                job["metadata"]["deletionTimestamp"] = "2026-11-29T21:00:00Z"

        def finish() -> None:
            controller.close()
            with self.lock:
                if self.jobs.get(name) is job:
                    del self.jobs[name]

        threading.Thread(target=finish, daemon=True).start()

    @property
    def running(self) -> int:
        """The processes of all pods that live."""
        return sum(p.process.poll() is None for c in self.controllers.values() for p in list(c.pods.values()))  # fmt: skip


def invalid(job: Job) -> Iterator[str]:
    """Rules of the API server that the schema lacks (``pkg/apis/batch/validation``); yields each one that is broken."""
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    indexed = spec.get("completionMode") == "Indexed"
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", job["metadata"]["name"]):
        yield "metadata.name: Invalid value"
    if indexed and not 1 <= spec.get("completions", 0) <= 100_000:
        yield "spec.completions: Required value: when completion mode is Indexed"
    if "backoffLimitPerIndex" in spec and not indexed:
        yield "spec.backoffLimitPerIndex: Invalid value: requires indexed completion mode"
    if "podFailurePolicy" in spec and pod.get("restartPolicy") != "Never":
        yield "spec.podFailurePolicy: Invalid value: only restartPolicy=Never is supported"
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
    names = [container["name"] for container in pod["containers"]]
    for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
        if rule.get("onExitCodes", {}).get("containerName", names[0]) not in names:
            yield "spec.podFailurePolicy.rules: Invalid value: must be one of the container names"
    for number, container in enumerate(pod["containers"]):
        if not container.get("image"):
            yield f"spec.template.spec.containers[{number}].image: Required value"


@contextmanager
def cluster(folder: Path, programs: Path, tls: ssl.SSLContext | None = None) -> Iterator[Cluster]:
    """A cluster at a port of loopback; its pods are ended with it."""
    made = Cluster(folder, programs)

    class Handler(BaseHTTPRequestHandler):
        """Passes requests on."""

        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            method, headers = self.command, {}
            try:
                code, document = made.answer(method, self.path, self.headers.get("Authorization", ""), body)  # fmt: skip
            except Refusal as refusal:
                code, document = refusal.code, refusal.status()
                headers = {"Retry-After": "1"} if code == 429 else {}
            except ConnectionError:
                self.close_connection = True
                return
            made.asked.append((method, code))
            if made.loses(method):
                self.close_connection = True
                return
            with made.lock:
                data = made.rewrites(json.dumps(document).encode())
            self.send_response(code)
            for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}.items():  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _answer  # noqa: N815  names of http.server

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        for controller in made.controllers.values():
            controller.spec["template"]["spec"]["terminationGracePeriodSeconds"] = 0
            controller.close()
