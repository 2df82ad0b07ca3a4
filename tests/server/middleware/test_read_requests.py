"""HEAD on every path that answers GET, and If-Match on everything that has an ETag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.errors.error_handlers import routes_of

import reshard
from tests.server.served import Served, serve, served

__all__ = ["serve", "served"]

LAYOUT = {"layout": {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []}}
MAP = {"map": {"map": [{"from": "a", "to": "b"}]}}
SCHEDULE = {"when": {"directory": "data/run"}, "targets": [{"target": "data/o/{step}"}]}
TENSOR = "/v1/tensors?checkpoint=data/a.safetensors&name=w"


@pytest.fixture
def filled(served: Served, tmp_path: Path) -> Served:
    """It has one of each kind, each called ``x``, and a checkpoint."""
    for kind, body in (("layouts", LAYOUT), ("maps", MAP), ("schedules", SCHEDULE)):
        answer = served.ask("PUT", f"/v1/{kind}/x", json=body)
        assert answer.status_code == 201, answer.text
    reshard.save(tmp_path / "source", {"w": np.arange(3000.0)})
    reshard.convert(tmp_path / "source", tmp_path / "data/a.safetensors")
    return served


def paths_of(served: Served) -> list[str]:
    """Every path that answers GET, with names for its parameters."""
    names = {"name": "x", "name:path": "app.js", "id": served.create()}
    routes = [r for r in routes_of(served.app) if "GET" in (r.methods or ())]
    assert len(routes) > 30
    found = []
    for route in routes:
        path = route.path
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        found.append(path)
    return found


def test_head_is_get_without_its_body(filled: Served) -> None:
    for path in [*paths_of(filled), TENSOR, "/v1/checkpoints?root=data"]:
        head = filled.ask("HEAD", path)
        assert head.content == b"", path
        if path.endswith("/events"):
            assert head.status_code == 200
            assert head.headers["content-type"].startswith("text/event-stream")
            continue
        got = filled.ask("GET", path)
        assert head.status_code == got.status_code, path
        same = {"content-type", "etag"} | ({"content-length"} if path != "/metrics" else set())
        for name in same - ({"content-length"} if got.is_error else set()):
            assert head.headers.get(name) == got.headers.get(name), (path, name)


def test_head_of_another_path_is_not_allowed(served: Served) -> None:
    answer = served.ask("HEAD", "/v1/plans")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    answer = served.ask("PATCH", "/v1/conversions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def test_streams_of_head_are_given_back(served: Served) -> None:
    path = f"/v1/conversions/{served.create()}/events"
    assert {served.ask("HEAD", path).status_code for _ in range(50)} == {200}
    metrics = served.ask("GET", "/metrics").text
    assert 'reshard_request_seconds_count{method="HEAD",route="/v1/conversions/{id}/events",status="200"} 50.0' in metrics  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "path", ["/v1/layouts/x", "/v1/maps/x@1", "/v1/schedules/x", "CONVERSION", TENSOR]
)
def test_if_match_is_compared_with_the_etag(filled: Served, method: str, path: str) -> None:
    path = path.replace("CONVERSION", f"/v1/conversions/{filled.create()}")

    def ask(match: str, **more: str) -> Any:
        return filled.ask(method, path, headers={"If-Match": match, **more})

    tag = filled.ask(method, path).headers["etag"]
    for match in (tag, "*", f'"other", {tag}'):
        assert ask(match).status_code == 200, match
    for match in ('"other"', f"W/{tag}"):
        refused = ask(match)
        assert (refused.status_code, refused.headers["etag"]) == (412, tag), match
        assert refused.headers["content-type"] == "application/problem+json"
    if method == "GET":
        assert refused.json()["detail"] == (
            f"its ETag is {tag}, which the request's If-Match does not name; read it again without If-Match"
        )
        assert ask('"other"', **{"If-None-Match": tag}).status_code == 412


def test_what_has_no_etag_ignores_if_match(served: Served) -> None:
    assert served.ask("GET", "/livez", headers={"If-Match": '"x"'}).status_code == 200
