"""Conversions by HTTP: made once, seen by their owner only, cancelled, tried again, forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from reshard_server.db.conversions import claims, conversions

from tests.server.claimed import claimed
from tests.server.served import Served

URL = "/v1/conversions"


ONE = {"source": "data/a", "target": "data/b"}


def test_created(served: Served) -> None:
    answer = served.ask("POST", URL, json={**ONE, "priority": 5, "labels": {"run": "7"}})
    found = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"{URL}/{found['id']}"
    assert answer.headers["Retry-After"] == "1"
    assert (found["state"], found["done"], found["created_by"]) == ("queued", False, "ann")
    assert found["request"]["labels"] == {"run": "7"}
    assert (served.wakes, found["priority"]) == (1, 5)
    assert served.ask("GET", answer.headers["Location"]).json() == found


def test_several_targets(served: Served) -> None:
    body = {"source": "data/a", "targets": [{"target": "data/b"}, {"target": "data/c"}]}
    answer = served.ask("POST", URL, json=body)
    assert answer.status_code == 202
    assert [t["target"] for t in answer.json()["request"]["targets"]] == ["data/b", "data/c"]


def test_the_same_key_leads_to_the_same_conversion(served: Served) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = served.ask("POST", URL, json=ONE, headers=key)
    again = served.ask("POST", URL, json={**ONE, "compression": "none"}, headers=key)
    assert again.status_code == 202
    assert again.json() == first.json()
    assert again.headers["Location"] == first.headers["Location"]
    assert served.wakes == 1


def test_a_key_is_its_tokens_own(served: Served) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = served.ask("POST", URL, "ann", json=ONE, headers=key)
    other = served.ask("POST", URL, "bob", json={**ONE, "source": "other/x"}, headers=key)
    assert other.status_code == 202
    assert other.json()["id"] != first.json()["id"]


def test_a_key_with_another_request_is_refused(served: Served) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = served.ask("POST", URL, json=ONE, headers=key).json()["id"]
    answer = served.ask("POST", URL, json={**ONE, "target": "data/c"}, headers=key)
    assert answer.status_code == 422
    assert answer.json() == {
        "type": "urn:reshard:problem:idempotency-key-reused",
        "title": "The Idempotency-Key belongs to another request",
        "status": 422,
        "detail": f"the Idempotency-Key 'k-1' was sent before with another request, which made the conversion {first}; "
        "send that request again, or take a new key",
        "field": "Idempotency-Key",
        "remedy": "send that request again, or take a new key",
        "instance": URL,
    }


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ü".encode()])
def test_a_key_that_is_none(served: Served, key: Any) -> None:
    answer = served.ask("POST", URL, json=ONE, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert answer.json()["field"] == "Idempotency-Key"


LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": []}


REFUSED: list[tuple[dict[str, Any], int, str, str | None, str]] = [
    ({"source": "other/a"}, 404, "not-found", "/source",
     "there is nothing at 'other/a' that this token may use; check root and path"),
    ({"target": "nowhere/a"}, 404, "not-found", "/target",
     "there is nothing at 'nowhere/a' that this token may use; check root and path"),
    ({"target": "data/a"}, 422, "storage", "/target", "the target 'data/a' is the source itself"),
    ({"target": "data/a/b"}, 422, "storage", "/target", "the target 'data/a/b' is inside the source 'data/a'"),
    ({"source": "data/b/1", "target": "data/b"}, 422, "storage", "/target",
     "the source 'data/b/1' is inside the target 'data/b'; choose another target"),
    ({"layout": "serving"}, 422, "layout", "/layout",
     "the layout 'serving' is not stored; store it, or give the layout's content"),
    ({"layout": {"rules": 3}}, 422, "layout", "/layout", "rules"),
    ({"mesh": "x"}, 422, "layout", "/mesh", "mesh 'x'"),
    ({"select": ["("]}, 422, "plan", "/select", "select '(' is no regular expression"),
    ({"cast": [[".", "float17"]]}, 422, "plan", "/cast", "no such dtype"),
    ({"compression": "lzma"}, 422, "plan", "/compression", "compression 'lzma' is not known"),
    ({"max_memory": "much"}, 422, "plan", "/max_memory", "max_memory"),
    ({"chunk_bytes": "-1"}, 422, "plan", "/chunk_bytes", "chunk_bytes"),
    ({"max_memory": "2GiB"}, 422, "invalid-request", "/max_memory",
     "max_memory is 2147483648 bytes, above this server's ceiling of 1073741824 (its setting max_memory); ask for at "
     "most that, or leave it out"),
    ({"workers": 3}, 422, "invalid-request", "/workers",
     "workers is 3 threads, above this server's ceiling of 2 (its setting workers); ask for at most that, or leave it out"),
    ({"no_progress_seconds": 1801}, 422, "invalid-request", "/no_progress_seconds",
     "no_progress_seconds is 1801 seconds, above this server's ceiling of 1800 (its setting no_progress_seconds); ask "
     "for at most that, or leave it out"),
    ({"run_seconds": 0.5}, 422, "invalid-request", "/run_seconds", "/run_seconds: expected at least 1.0, found 0.5"),
    ({"sauce": "x"}, 422, "invalid-request", "/sauce",
     "/sauce: there is no member of this name; correct the name, or leave it out"),
    ({"restart": 0}, 422, "invalid-request", "/restart", "/restart: expected true or false, found 0"),
    ({"priority": "5"}, 422, "invalid-request", "/priority", "/priority: expected a whole number, found '5'"),
    ({"priority": True}, 422, "invalid-request", "/priority", "expected a whole number, found true"),
    ({"max_memory": True}, 422, "invalid-request", "/max_memory",
     "/max_memory: expected text or a whole number, found true"),
    ({"layout": [1]}, 422, "invalid-request", "/layout", "/layout: expected text or an object, found a list"),
    ({"priority": 101}, 422, "invalid-request", "/priority", "/priority: expected at most 100, found 101"),
    ({"verify": "no"}, 422, "invalid-request", "/verify", "expected 'written' or 'readback', found 'no'"),
    ({"cast": {".": "bfloat16"}}, 422, "invalid-request", "/cast", "/cast: expected a list, found an object"),
    ({"labels": {"a": 1}}, 422, "invalid-request", "/labels/a", "/labels/a: expected text, found 1"),
    ({"labels": {"str": 1}}, 422, "invalid-request", "/labels/str", "/labels/str: expected text, found 1"),
    ({"source": None}, 422, "invalid-request", "/source", "/source: expected text, found null"),
    ({"mesh": "m" * 1001}, 422, "invalid-request", "/mesh", "/mesh: expected at most 1000 characters, found 1001"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "status", "kind", "field", "words"), REFUSED)
def test_refused_before_it_is_accepted(
    served: Served, members: dict[str, Any], status: int, kind: str, field: str | None, words: str
) -> None:
    answer = served.ask("POST", URL, json={**ONE, **members})
    found = answer.json()
    assert (answer.status_code, found["type"]) == (status, f"urn:reshard:problem:{kind}")
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in found["detail"]
    assert found["field"] == field
    assert found["remedy"]
    assert served.wakes == 0


def test_what_is_missing_is_named(served: Served) -> None:
    found = served.ask("POST", URL, json={"source": "data/a"}).json()
    assert (found["field"], found["detail"]) == ("/target", "/target: it is missing")
    found = served.ask("POST", URL, json=[]).json()
    assert (found["field"], found["detail"]) == ("body", "body: expected an object, found a list")


def test_where_nothing_is_the_description_is_named(served: Served) -> None:
    found = served.ask("GET", "/v1/nothing").json()
    assert found["detail"] == (
        "GET /v1/nothing: there is no such path; the API's description is at /docs"
    )
    found = served.ask("PATCH", URL).json()
    assert found["detail"] == (f"PATCH {URL}: another method was expected; use GET, HEAD, POST")
    assert found["remedy"] == "use GET, HEAD, POST"


def test_a_field_of_one_of_several_targets_is_named(served: Served) -> None:
    wrong = {"source": "data/a", "targets": [{"target": "data/b"}, {"target": "data/b"}]}
    found = served.ask("POST", URL, json=wrong).json()
    assert found["field"] == "/targets/1/target"
    assert found["detail"] == (
        "/targets/0/target and /targets/1/target are both 'data/b'; give each target its own path"
    )
    wrong = {"source": "data/a", "targets": [{"target": "data/b", "layout": "gone"}]}
    assert served.ask("POST", URL, json=wrong).json()["field"] == "/targets/0/layout"
    wrong = {"source": "data/a", "targets": [{"target": "data/b", "drop": ["("]}]}
    assert served.ask("POST", URL, json=wrong).json()["field"] == "/targets/0/drop"


def test_too_many_wait(serve: Callable[..., Served]) -> None:
    served = serve(queued_per_token=2)
    first, _ = served.create(), served.create()
    answer = served.ask("POST", URL, json=ONE, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "30"
    assert answer.json()["detail"] == (
        "2 conversions of the token 'ann' wait already, the most that may wait; wait until some have ended, or cancel some"
    )
    assert served.create("bob")
    assert served.wakes == 3
    conversions.request_cancel(served.db, first)
    assert served.ask("POST", URL, json=ONE, headers={"Idempotency-Key": "k"}).status_code == 202


def test_nothing_new_while_the_server_ends(served: Served) -> None:
    failed = served.create()
    conversions.request_cancel(served.db, failed)
    served.app.state.drain.started.set()
    for path, body in ((URL, ONE), (f"{URL}/{failed}:retry", None)):
        answer = served.ask("POST", path, json=body)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert answer.json()["detail"].startswith("this server is ending and accepts no new work")
    assert served.ask("GET", f"{URL}/{failed}").status_code == 200
    assert served.ask("GET", "/readyz", None).status_code == 503
    assert served.ask("GET", "/livez", None).status_code == 200


def test_others_are_not_there(served: Served) -> None:
    mine = served.create("ann")
    for method, path in (
        ("GET", ""), ("GET", "/events"), ("POST", ":cancel"), ("POST", ":retry"), ("DELETE", ""),
    ):  # fmt: skip
        answer = served.ask(method, f"{URL}/{mine}{path}", "bob")
        assert answer.status_code == 404
        assert answer.json()["detail"] == (
            f"there is no conversion '{mine}' that this token may see; list them at /v1/conversions"
        )
    assert served.ask("GET", f"{URL}/{mine}", "root").status_code == 200
    assert [c["id"] for c in served.ask("GET", URL, "root").json()["conversions"]] == [mine]
    assert served.ask("GET", URL, "bob").json()["conversions"] == []


def test_a_token_without_the_scope(served: Served) -> None:
    answer = served.ask("POST", URL, "eve", json=ONE)
    assert answer.status_code == 403
    assert (
        answer.json()["detail"]
        == "the token 'eve' lacks the scope 'convert'; ask for one that has it"
    )


def test_polled_by_etag(served: Served) -> None:
    new = served.create()
    path = f"{URL}/{new}"
    first = served.ask("GET", path)
    tag = first.headers["ETag"]
    for known in (tag, f'W/{tag}, "x"', f'"y", {tag}'):
        same = served.ask("GET", path, headers={"If-None-Match": known})
        assert (same.status_code, same.headers["ETag"], same.content) == (304, tag, b"")
    claimed(served.db, new)
    changed = served.ask("GET", path, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["state"]) == (200, "running")
    assert changed.headers["ETag"] != tag


def test_listed(served: Served) -> None:
    ids = [served.create(source=f"data/r{i}", labels={"odd": str(i % 2)}) for i in range(5)][::-1]
    first = served.ask("GET", f"{URL}?page_size=2").json()
    second = served.ask("GET", URL, params={"page_size": 2, "page_token": first["next_page_token"]})
    assert [c["id"] for c in first["conversions"] + second.json()["conversions"]] == ids[:4]
    conversions.request_cancel(served.db, ids[0])

    def listed(query: str) -> list[str]:
        answer = served.ask("GET", f"{URL}?{query}")
        assert answer.status_code == 200, answer.text
        return [c["id"] for c in answer.json()["conversions"]]

    assert listed("state=cancelled&state=failed") == ids[:1]
    for size in (0, 201, 10**30):  # AIP-158: the server's own, and the largest
        assert listed(f"page_size={size}") == ids
    assert listed("label=odd%3D1") == [ids[1], ids[3]]
    assert listed("source=data/r3") == [ids[1]]
    assert listed("schedule=nightly") == []
    assert listed("created_before=2020-01-01T00:00:00Z") == []
    assert listed("created_after=2020-01-01T00:00:00%2B01:00") == ids


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=-1", "page_size"), ("page_size=x", "page_size"), ("page_token=x", "page_token"),
        ("state=done", "state"), ("label=x", "label"), ("created_after=2020-01-01", "created_after"),
        ("sate=failed", "sate"), ("created_after=0.5", "created_after"), ("created_after=2020-01-01T00:00:00", "created_after"),
    ],
)  # fmt: skip
def test_a_listing_that_makes_no_sense(served: Served, query: str, field: str) -> None:
    answer = served.ask("GET", f"{URL}?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_cancelled_and_tried_again(served: Served) -> None:
    path = f"{URL}/{served.create(priority=2)}"
    cancelled = served.ask("POST", f"{path}:cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert served.ask("POST", f"{path}:cancel").status_code == 200
    again = served.ask("POST", f"{path}:retry")
    assert (again.status_code, again.json()["state"]) == (202, "queued")
    assert again.headers["Location"] == path
    assert (served.wakes, again.json()["priority"]) == (2, 2)
    twice = served.ask("POST", f"{path}:retry")
    assert twice.status_code == 409
    assert twice.json()["detail"].endswith(
        "is queued; only failed and cancelled ones can be retried"
    )


def test_what_has_ended_is_not_cancelled_and_what_runs_not_deleted(served: Served) -> None:
    new = served.create()
    claim = claimed(served.db, new)
    answer = served.ask("DELETE", f"{URL}/{new}")
    assert answer.status_code == 409
    assert answer.json()["detail"] == (
        f"conversion {new} is running; cancel it, and delete it once it has ended"
    )
    assert answer.json()["remedy"] == "cancel it, and delete it once it has ended"
    claims.finish(served.db, claim, "succeeded", result=[{"moved_bytes": 7}])
    answer = served.ask("POST", f"{URL}/{new}:cancel")
    assert answer.status_code == 409
    assert answer.json()["detail"] == (
        f"conversion {new} has succeeded already; there is nothing to cancel"
    )
    assert served.ask("DELETE", f"{URL}/{new}").status_code == 204
    assert served.ask("GET", f"{URL}/{new}").status_code == 404
