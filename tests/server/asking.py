"""Questions to a server by HTTP, and conversions that are awaited."""

from __future__ import annotations

import json
from typing import Any

import httpx


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    """The answer to a request."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def converted(client: httpx.Client, **body: Any) -> Any:
    """A conversion when it has ended."""
    made = client.post("/v1/conversions", json=body)
    assert made.status_code == 202, made.text
    with client.stream("GET", f"{made.headers['Location']}/events", timeout=300) as stream:
        last = [line for line in stream.iter_lines() if line][-1]
    return json.loads(last.removeprefix("data: "))
