"""Folders of hard links and staging folders are never targets, in any kind of request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.pages.browser import Browser
from tests.server.served import Served

NAMES = (
    "data/.reshard-held/12",
    "data/.out.reshard-partial/checkpoint",
    "data/x/.reshard-removed-1/y",
)
BY_STEP = {"when": {"directory": "data/run"}}
BY_CLOCK = {"when": {"cron": "0 3 * * *", "source": "data/a"}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/conversions", {"source": "data/a", "target": "NAME"}),
        ("POST", "/v1/conversions", {"source": "data/a", "targets": [{"target": "data/b"}, {"target": "NAME"}]}),
        ("POST", "/v1/plans", {"source": "data/a", "target": "NAME"}),
        ("PUT", "/v1/schedules/s", {**BY_STEP, "targets": [{"target": "NAME/{step}"}]}),
        ("PUT", "/v1/schedules/s", {**BY_CLOCK, "targets": [{"target": "NAME/{time}"}]}),
        ("POST", "/v1/checkpoints:fingerprint", {"checkpoint": "NAME"}),
    ],
)  # fmt: skip
def test_refused_with_words(
    served: Served, method: str, path: str, body: dict[str, Any], name: str
) -> None:
    folder = Path(str(served.app.state.services.settings.roots["data"])) / name.removeprefix(
        "data/"
    )
    folder.mkdir(parents=True)

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: named(v) for k, v in value.items()}
        if isinstance(value, list):
            return list(map(named, value))
        return value.replace("NAME", name) if isinstance(value, str) else value

    answer = served.ask(method, path, json=named(body))
    assert answer.status_code == 422, answer.text
    field = answer.json()["field"].rpartition("/")[2]
    assert field in ("target", "checkpoint")
    assert answer.json()["detail"].endswith(f"; choose another {field}")
    assert list(folder.iterdir()) == []


def test_a_schedule_whose_steps_would_lie_there(served: Served) -> None:
    targets = [{"target": "data/.{name}.reshard-partial/{step}"}]
    answer = served.ask("PUT", "/v1/schedules/s", json={**BY_STEP, "targets": targets})
    assert answer.status_code == 422
    assert "for unfinished output (.NAME.reshard-partial)" in answer.json()["detail"]


def test_by_the_form(ann: Browser) -> None:
    ann.go("/new-conversion")
    ann.submit("/new-conversion", source="data/a", target=NAMES[0], do="start")
    assert ann.status == 422
    assert "is in the folder for hard links to sources (.reshard-held)" in ann.text
