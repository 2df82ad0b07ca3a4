"""Routes of the API: methods, paths that are none, tokens, the events of a stream, and metrics."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from reshard_server.db.conversions import claims, conversions
from reshard_server.db.conversions.parts import Split
from reshard_server.schemas.conversion import ProgressState

from tests.server.claimed import begun
from tests.server.served import Served

URL = "/v1/conversions"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", URL, "GET, HEAD, POST"), ("PATCH", f"{URL}/x", "DELETE, GET, HEAD"), ("GET", f"{URL}/x:cancel", "POST"),
        ("DELETE", f"{URL}/x:retry", "POST"), ("OPTIONS", f"{URL}/x:cancel", "POST"), ("POST", f"{URL}/x/events", "GET, HEAD"), ("DELETE", "/livez", "GET, HEAD"),
    ],
)  # fmt: skip
def test_a_method_that_is_not_allowed(served: Served, method: str, path: str, allow: str) -> None:
    answer = served.ask(method, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allow)
    assert answer.json()["type"] == "urn:reshard:problem:method-not-allowed"


def test_actions_are_posted(served: Served) -> None:
    for method, name in (("GET", "x:cancel"), ("DELETE", "x:retry")):
        assert served.ask(method, f"{URL}/{name}").json()["detail"] == (
            f"{name!r} ends with an action, which takes POST only; send POST, or remove the action"
        )


def test_nothing_here(served: Served) -> None:
    answer = served.ask("GET", "/v2/things")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:reshard:problem:not-found")


@pytest.mark.parametrize("token", [None, "Bearer wrong", "Basic YTpi", "Bearer"])
def test_nobody_asks_without_a_token(served: Served, token: str | None) -> None:
    headers = {"Authorization": token} if token else {}
    for path in (URL, f"{URL}/x", f"{URL}/x/events", "/metrics"):
        answer = served.ask("GET", path, None, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_an_event_that_was_the_last_is_not_told_again(served: Served) -> None:
    new = served.create()
    conversions.request_cancel(served.db, new)
    answer = served.ask("GET", f"{URL}/{new}/events", headers={"Last-Event-ID": "2"})
    assert (answer.status_code, answer.content) == (204, b"")
    answer = served.ask("GET", f"{URL}/{new}/events", headers={"Last-Event-ID": "1"})
    assert answer.text.startswith("retry: 2000\n\nid: 2\nevent: end\ndata: {")


def test_metrics_tell_the_records(served: Served) -> None:
    done, running = served.create(), served.create()
    served.create()
    ended, going_on = (begun(served.db, new) for new in (done, running))
    claims.finish(served.db, ended, "succeeded", result=[{"moved_bytes": 700}])
    claims.set_progress(
        served.db,
        going_on,
        ProgressState(
            stage="copying", moved_bytes=40, total_bytes=50, tasks_done=1, tasks=2, tensor="w"
        ),
    )
    text = served.ask("GET", "/metrics").text
    for line in (
        'reshard_conversions{state="succeeded"} 1.0', 'reshard_conversions{state="running"} 1.0',
        "reshard_queue_depth 1.0", "reshard_moved_bytes_total 700.0", "reshard_moving_bytes 40.0",
        'reshard_conversion_seconds_bucket{le="1.0",state="succeeded"} 1.0', "reshard_records_up 1.0",
        'reshard_conversion_seconds_bucket{le="+Inf",state="succeeded"} 1.0', "reshard_streams_open 0.0",
        'reshard_request_seconds_count{method="POST",route="/v1/conversions",status="202"} 3.0',
        "reshard_workers 0.0", "reshard_waiting_slots 1.0", "reshard_left_bytes 10.0", "reshard_bytes_per_second 0.0",
        'reshard_parts{state="queued"} 0.0',
    ):  # fmt: skip
        assert line in text.splitlines()
    assert "process_resident_memory_bytes " in text
    assert re.search(r'reshard_host_slots{host="[^"]+"} 2.0', text)
    assert re.search(
        r'reshard_host_running{host="[^"]+"} 0.0', text
    )  # of a host that is not live: "other"


def test_metrics_are_open_where_the_settings_say_so(serve: Callable[..., Served]) -> None:
    assert serve(metrics_open=True).ask("GET", "/metrics", None).status_code == 200


def test_a_conversion_in_parts_is_told_with_its_parts(served: Served) -> None:
    new = served.create(parts=2)
    claim = claims.claim_next(served.db, "other", claims.new_claim_text(), 99)
    assert claim is not None
    assert claims.split(served.db, claim, Split(2, 100, False, 1 << 30, 2))
    found = served.ask("GET", f"{URL}/{new}").json()
    assert (found["state"], found["part_counts"]) == ("running", {"queued": 2})
    assert [(part["number"], part["state"]) for part in found["parts"]] == [
        (1, "queued"),
        (2, "queued"),
    ]
    [listed] = served.ask("GET", URL).json()["conversions"]
    assert (listed["id"], listed["parts"], listed["part_counts"]) == (new, None, {"queued": 2})
    tag = served.ask("GET", f"{URL}/{new}").headers["ETag"]
    part = claims.claim_next(served.db, "other", claims.new_claim_text(), 99)
    assert part is not None
    assert served.ask("GET", f"{URL}/{part.conversion}").status_code == 404
    assert served.ask("GET", f"{URL}/{new}", headers={"If-None-Match": tag}).status_code == 200
    assert claims.finish(served.db, part, "failed", error={"detail": "no space"})
    answer = served.ask("GET", f"{URL}/{new}/events")
    assert "event: end" in answer.text and '"parts": null' in answer.text
    assert served.ask("DELETE", f"{URL}/{new}").status_code == 204


@pytest.mark.parametrize(
    "body",
    [
        {"source": "data/a", "target": "data/b", "deltas": ["data/d"], "parts": 2},
        {"source": "data/a", "targets": [{"target": "data/b"}], "parts": 0},
        {"source": "data/a", "target": "data/b", "parts": "many"},
        {"source": "data/a", "target": "data/b", "parts": 2, "engine": "magic"},
    ],
)
def test_parts_that_cannot_be_are_refused(served: Served, body: dict[str, object]) -> None:
    answer = served.ask("POST", URL, json=body)
    assert answer.status_code == 422
    said = answer.json()["detail"] + str(answer.json().get("errors", ""))
    assert ("one process; leave parts out" in said) == ("deltas" in body)
    old = {"old": "data/a", "new": "data/b", "target": "data/weight_v000002", "parts": "auto"}
    answer = served.ask("POST", "/v1/deltas", json=old)
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "parts is 'auto', but a delta is made, and deltas are applied, by one process; leave parts out"
    )
