"""Large bodies: parsed aside, once, and refused before half a million members of them are looked at."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from reshard_server.middleware import body_limits as limits

from tests.server.served import Served, serve, served

__all__ = ["serve", "served"]

URL = "/v1/conversions"
WISH = {"source": "data/a", "target": "data/b"}
MANY = 30_000


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(limits.PARSERS + 2) as pool:
        yield pool


def test_others_are_answered_while_large_bodies_are_parsed(
    served: Served, clients: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, back, begun = limits.parsed_json, threading.Event(), threading.Semaphore(0)

    def hangs(body: bytes) -> Any:
        begun.release()
        assert back.wait(300)
        return usual(body)

    monkeypatch.setattr(limits, "parsed_json", hangs)
    labels = {f"{n}": "x" * 250 for n in range(32)}
    large = {**WISH, "layout": {"mesh": {"axes": ["x" * limits.ASIDE_BYTES], "shape": [2]}}}
    assert len(json.dumps({**WISH, "labels": labels})) > limits.ASIDE_BYTES
    asked = [
        clients.submit(served.ask, "POST", URL, json=body)
        for body in (large, {**WISH, "labels": labels})
    ]
    try:
        for _ in asked:
            assert begun.acquire(timeout=300)
        assert served.ask("GET", "/livez", None).status_code == 200
        assert not any(one.done() for one in asked)
    finally:
        back.set()
    assert [one.result(300).status_code for one in asked] == [202, 202]


@pytest.mark.parametrize("large", [False, True])
def test_a_body_is_parsed_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    parsed: list[int] = []
    usual = json.loads

    def loads(text: Any, **more: Any) -> Any:
        if len(text) > 50 and "source" in str(text[:50]):
            parsed.append(len(text))
        return usual(text, **more)

    body = json.dumps({**WISH, "labels": {"x": "y" * 200}})
    body += " " * (limits.ASIDE_BYTES if large else 77)  # no other text is as long
    monkeypatch.setattr(json, "loads", loads)
    answer = served.ask("POST", URL, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 202
    assert parsed.count(len(body)) == 1


@pytest.mark.parametrize(
    ("members", "field", "words"),
    [
        ({"select": [1] * MANY}, "/select", f"/select: expected at most 1000 of them, found {MANY}"),
        ({"rename": [[]] * MANY}, "/rename", f"/rename: expected at most 1000 of them, found {MANY}"),
        ({"labels": dict.fromkeys(map(str, range(MANY)), 0)}, "/labels", f"/labels: expected at most 32 of them, found {MANY}"),
        (dict.fromkeys(map(str, range(MANY)), 0), "body", f"body: expected at most 100 members, found {MANY + 2}"),
    ],
)  # fmt: skip
def test_many_wrong_members_are_one_mistake(
    served: Served, members: dict[str, Any], field: str, words: str
) -> None:
    answer = served.ask("POST", URL, json={**WISH, **members})
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert answer.json()["detail"] == words
    assert len(answer.json()["errors"]) == 1
    assert len(answer.content) < 1000


def test_of_a_list_the_first_mistake_is_told(served: Served) -> None:
    answer = served.ask("POST", URL, json={**WISH, "select": ["x", 1, 2, 3]})
    [wrong] = answer.json()["errors"]
    assert wrong == {"field": "/select/1", "detail": "expected text, found 1"}


def test_many_targets_are_one_mistake(served: Served) -> None:
    body = {"source": "data/a", "targets": [{}] * MANY}
    for url in (URL, "/v1/plans"):
        answer = served.ask("POST", url, json=body)
        assert answer.json()["detail"] == f"/targets: expected at most 16 of them, found {MANY}"


def test_a_body_of_absurdly_many_values_is_refused(serve: Callable[..., Served]) -> None:
    served = serve(body_bytes=64 << 10)
    body = '{"layout":{"rules":[' + ",".join(["[]"] * 20_000) + "]}}"
    answer = served.ask(
        "PUT", "/v1/layouts/x", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert "it has more than 16384 lists, objects and commas" in answer.json()["detail"]
