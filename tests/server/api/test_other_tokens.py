"""Resources of another token are answered as if they did not exist, in text, status and headers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from reshard_server.db.schedules import schedules
from reshard_server.resources import schedules as resource

from tests.server.pages.browser import Browser
from tests.server.served import Served

SCHEDULE = {"when": {"directory": "data/run"}, "targets": [{"target": "data/o/{step}"}]}
VARYING = {"x-request-id", "content-length", "date"}


def answer(found: httpx.Response, name: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers, with the name put out of sight."""
    headers = {k: v.replace(name, "NAME") for k, v in found.headers.items() if k not in VARYING}
    return found.status_code, found.text.replace(name, "NAME"), headers


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("GET", "/v1/schedules/NAME", {}),
        ("GET", "/v1/schedules/NAME/runs", {}),
        ("DELETE", "/v1/schedules/NAME", {}),
        ("DELETE", "/v1/schedules/NAME", {"headers": {"If-Match": '"x"'}}),
        ("POST", "/v1/schedules/NAME:pause", {}),
        ("POST", "/v1/schedules/NAME:resume", {}),
        ("POST", "/v1/schedules/NAME:run", {}),
        ("POST", "/v1/schedules/NAME:run", {"json": {"step": 5}}),
        ("PUT", "/v1/schedules/NAME", {"json": SCHEDULE, "headers": {"If-Match": "*"}}),
        ("PUT", "/v1/schedules/NAME", {"json": {**SCHEDULE, "targets": [{"target": "no/o/{step}"}]}}),
        ("PUT", "/v1/schedules/NAME", {"json": {**SCHEDULE, "targets": [{"target": "data/o"}]}}),
        ("PUT", "/v1/schedules/NAME", {"json": {}}),
        ("GET", "/v1/conversions?schedule=NAME", {}),
    ],
)  # fmt: skip
def test_a_schedule(served: Served, method: str, path: str, more: dict[str, Any]) -> None:
    assert served.ask("PUT", "/v1/schedules/taken", json=SCHEDULE).status_code == 201
    answers = [
        answer(served.ask(method, path.replace("NAME", name), "bob", **more), name)
        for name in ("taken", "free_")
    ]
    assert answers[0] == answers[1]
    assert served.ask("GET", "/v1/schedules/taken").json()["revision"] == 1


def test_a_name_that_cannot_be_had_is_refused_without_why(served: Served) -> None:
    assert served.ask("PUT", "/v1/schedules/taken", json=SCHEDULE).status_code == 201
    for headers in ({}, {"If-None-Match": "*"}):
        found = served.ask("PUT", "/v1/schedules/taken", "bob", json=SCHEDULE, headers=headers)
        assert (found.status_code, found.json()["detail"]) == (
            409,
            "the name 'taken' cannot be used; choose another name",
        )
        assert "ETag" not in found.headers and "token" not in found.text


def test_nor_where_another_token_was_faster(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look, nothing is there, and the other one stores first."""
    create = schedules.create

    def overtaken(db: Any, name: str, token: str, *rest: Any) -> Any:
        create(db, name, "ann", *rest)
        return create(db, name, token, *rest)

    monkeypatch.setattr(resource.schedules, "create", overtaken)
    found = served.ask("PUT", "/v1/schedules/s", "bob", json=SCHEDULE)
    assert (found.status_code, found.json()["detail"]) == (
        409,
        "the name 's' cannot be used; choose another name",
    )
    found = served.ask("PUT", "/v1/schedules/t", "ann", json=SCHEDULE)
    assert found.status_code == 412  # one's own may be told


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/conversions/NAME"),
        ("GET", "/v1/conversions/NAME/events"),
        ("POST", "/v1/conversions/NAME:cancel"),
        ("POST", "/v1/conversions/NAME:retry"),
        ("DELETE", "/v1/conversions/NAME"),
    ],
)
def test_a_conversion(served: Served, method: str, path: str) -> None:
    made = served.create("ann")
    nobodys = made[:-1] + ("0" if made[-1] != "0" else "1")
    answers = [
        answer(served.ask(method, path.replace("NAME", name), "bob"), name)
        for name in (made, nobodys)
    ]
    assert answers[0] == answers[1] and answers[0][0] == 404


def test_an_idempotency_key(served: Served) -> None:
    key = {"Idempotency-Key": "same"}
    body = {"source": "data/a", "target": "data/b"}
    first = served.ask("POST", "/v1/conversions", json=body, headers=key)
    other = served.ask("POST", "/v1/conversions", "bob", json=body, headers=key)
    another = served.ask("POST", "/v1/conversions", "eve", json=body, headers=key)
    assert (first.status_code, other.status_code, another.status_code) == (202, 202, 403)
    assert first.json()["id"] != other.json()["id"]


def test_pages(served: Served, ann: Browser) -> None:
    assert served.ask("PUT", "/v1/schedules/taken", "bob", json=SCHEDULE).status_code == 201
    made = served.create("bob")
    nobodys = made[:-1] + ("0" if made[-1] != "0" else "1")
    for path, names in (
        ("/schedules/NAME", ("taken", "free_")),
        ("/conversions/NAME", (made, nobodys)),
        ("/conversions/NAME/plan", (made, nobodys)),
        ("/new-conversion?again=NAME", (made, nobodys)),
    ):
        answers = [answer(ann.send("GET", path.replace("NAME", name)), name) for name in names]
        assert answers[0] == answers[1] and answers[0][0] == 404
    for path in ("/", "/schedules", "/conversions"):
        text = ann.send("GET", path).text
        assert "taken" not in text and made not in text and "bob" not in text


def test_a_layout_says_no_name(served: Served) -> None:
    """Every reader sees every layout; a caller who may not change one learns nothing more."""
    layout = {"layout": {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []}}
    other = {"layout": {"mesh": {"axes": ["m"], "shape": [4]}, "rules": []}}
    assert served.ask("PUT", "/v1/layouts/taken", json=layout).status_code == 201
    for method, more in (("PUT", {"json": other}), ("DELETE", {})):
        found = served.ask(method, "/v1/layouts/taken", "bob", **more)
        assert (found.status_code, found.json()["detail"]) == (
            403,
            "the layout 'taken' belongs to another token, so this one may not change it; take another name, or ask an admin",
        )


@pytest.mark.parametrize(
    ("path", "contents"),
    [
        ("/v1/schedules/x", [{**SCHEDULE, "priority": n} for n in range(3)]),
        ("/v1/maps/x", [{"map": {"map": [{"from": "a", "to": f"b{n}"}]}} for n in range(3)]),
        ("/v1/layouts/x", [{"layout": {"mesh": {"axes": ["m"], "shape": [n]}, "rules": []}} for n in (1, 2, 3)]),
    ],
)  # fmt: skip
def test_an_admin_who_replaces_it_takes_it_from_nobody(
    served: Served, path: str, contents: list[Any]
) -> None:
    first, second, third = contents
    assert served.ask("PUT", path, json=first).status_code == 201
    assert served.ask("PUT", path, "root", json=second).status_code in (200, 201)
    assert served.ask("PUT", path, "bob", json=third).status_code in (403, 409)
    assert served.ask("PUT", path, json=third).status_code in (200, 201)
    assert served.ask("DELETE", path).status_code == 204
    assert served.ask("PUT", path, "bob", json=first).status_code == 201
    assert served.ask("PUT", path, json=second).status_code in (403, 409)


def test_a_schedule_that_an_admin_replaced_runs_with_its_owners_rights(served: Served) -> None:
    path, elsewhere = "/v1/schedules/x", {**SCHEDULE, "targets": [{"target": "other/{step}"}]}
    assert served.ask("PUT", path, json=SCHEDULE).status_code == 201
    refused = served.ask("PUT", path, "root", json=elsewhere)
    assert refused.json()["detail"] == (
        "there is nothing at 'other/1000000' that this token may use; check root and path"
    )
    changed = served.ask("PUT", path, "root", json={**SCHEDULE, "priority": 1}).json()
    assert (changed["created_by"], changed["revision"]) == ("ann", 2)
    tokens = served.app.state.services.tokens
    tokens.replace(tuple(token for token in tokens.settings if token.name != "ann"))
    gone = served.ask("PUT", path, "root", json=SCHEDULE)
    assert (gone.status_code, gone.json()["detail"]) == (
        409,
        "the token 'ann', which made this schedule, no longer exists or has expired; make a token of this name again, or "
        "delete the schedule and store it with another token",
    )
    assert served.ask("DELETE", path, "root").status_code == 204
    assert served.ask("PUT", path, "root", json=elsewhere).json()["created_by"] == "root"
