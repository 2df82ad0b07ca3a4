"""Schedules by HTTP: stored under conditions, seen by their owner only, paused, run, forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reshard_server.db.schedules import schedules

from tests.server.schedules.bench import write_step
from tests.server.served import Served
from tests.server.waiting import until

URL = "/v1/schedules"
EACH: dict[str, Any] = {
    "when": {"directory": "data/run", "poll_seconds": 0.2},
    "targets": [{"target": "data/out/{step}"}],
}
NIGHTLY: dict[str, Any] = {
    "when": {"cron": "0 3 * * *", "source": "data/run/1"},
    "targets": [{"target": "data/out/{time}"}],
}


def put(served: Served, name: str = "s", who: str = "ann", **body: Any) -> Any:
    answer = served.ask("PUT", f"{URL}/{name}", who, json={**NIGHTLY, **body})
    assert answer.status_code in (200, 201), answer.text
    return answer


def test_created_and_replaced(served: Served) -> None:
    made = put(served)
    assert (made.status_code, made.headers["Location"]) == (201, f"{URL}/s")
    found = made.json()
    assert (found["name"], found["created_by"], found["revision"]) == ("s", "ann", 1)
    assert found["next_at"].endswith("T03:00:00Z")
    assert (found["paused"], found["last"]) == (False, None)
    got = served.ask("GET", f"{URL}/s")
    assert (got.json(), got.headers["ETag"]) == (found, made.headers["ETag"])
    again = put(served, keep=3)
    assert (again.status_code, again.json()["revision"]) == (200, 2)
    assert again.json()["schedule"]["keep"] == 3
    assert again.json()["created_at"] == found["created_at"]
    assert again.headers["ETag"] != made.headers["ETag"]
    assert "Location" not in again.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "after_deletion"),
    [
        ("DELETE", "s", 204, 404),
        ("POST", "s:pause", 200, 404),
        ("POST", "s:resume", 200, 404),
        ("PUT", "s", 200, 412),
    ],
)
def test_a_change_meanwhile_refuses_only_requests_that_exclude_it(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    status: int,
    after_deletion: int,
) -> None:
    """The scheduler may pause the schedule between the look and the change of a request."""
    pause, delete = schedules.set_paused, schedules.delete
    meanwhile = [lambda db, found: pause(db, found, 0, paused=True, unchanged=True)]

    def after(real: Any) -> Any:
        def call(db: Any, found: Any, *rest: Any, **how: Any) -> Any:
            meanwhile[0](db, found)
            return real(db, found, *rest, **how)

        return call

    for name in ("delete", "set_paused", "replace"):
        monkeypatch.setattr(schedules, name, after(getattr(schedules, name)))

    def ask(**headers: str) -> int:
        return served.ask(method, f"{URL}/{path}", json=NIGHTLY, headers=headers).status_code

    put(served)
    assert ask() == status
    if method != "POST":
        etag = put(served).headers["ETag"]
        assert ask(**{"If-Match": etag}) == 412
    meanwhile[0] = delete
    assert ask() == after_deletion


def test_only_in_the_state_that_is_expected(served: Served) -> None:
    def ask(method: str = "PUT", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return served.ask(method, f"{URL}/s", json=NIGHTLY, headers=named)

    missing = ask(If_Match="*")
    assert (missing.status_code, missing.json()["detail"]) == (
        412,
        "the schedule does not exist, which the request's If-Match or If-None-Match does not expect; read it again, and send "
        "the change with its ETag",
    )
    first = ask(If_None_Match="*")
    assert first.status_code == 201
    assert ask(If_None_Match="*").status_code == 412
    second = ask(If_Match=f'"other", {first.headers["ETag"]}')
    assert second.status_code == 200
    stale = ask(If_Match=first.headers["ETag"])
    assert stale.status_code == 412
    assert f"the schedule is {second.headers['ETag']} now" in stale.json()["detail"]
    assert ask("DELETE", If_Match=first.headers["ETag"]).status_code == 412
    assert ask("DELETE", If_Match=second.headers["ETag"]).status_code == 204
    assert served.ask("GET", f"{URL}/s").status_code == 404
    third = ask()
    assert third.headers["ETag"] not in (first.headers["ETag"], second.headers["ETag"])


def test_another_token_sees_nothing(served: Served) -> None:
    put(served)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/runs"), ("POST", ":pause")):
        answer = served.ask(method, f"{URL}/s{path}", "bob")
        assert answer.status_code == 404
        assert answer.json()["detail"] == (
            "there is no schedule 's' that this token may see; list them at /v1/schedules"
        )
    taken = served.ask("PUT", f"{URL}/s", "bob", json=NIGHTLY)
    assert (taken.status_code, taken.json()["detail"]) == (
        409,
        "the name 's' cannot be used; choose another name",
    )
    assert served.ask("GET", URL, "bob").json()["schedules"] == []
    assert [s["name"] for s in served.ask("GET", URL, "root").json()["schedules"]] == ["s"]
    assert served.ask("GET", f"{URL}/s", "root").status_code == 200


def test_who_only_reads_changes_nothing(served: Served) -> None:
    assert served.ask("PUT", f"{URL}/s", "eve", json=NIGHTLY).status_code == 403
    assert served.ask("POST", f"{URL}/s:run", "eve", json={}).status_code == 403


def test_listed_by_name_in_pages(served: Served) -> None:
    for name in ("c", "a", "b"):
        put(served, name)
    first = served.ask("GET", f"{URL}?page_size=2").json()
    assert [s["name"] for s in first["schedules"]] == ["a", "b"]
    token = first["next_page_token"]
    rest = served.ask("GET", f"{URL}?page_size=2&page_token={token}").json()
    assert ([s["name"] for s in rest["schedules"]], rest["next_page_token"]) == (["c"], None)
    other = served.ask("GET", f"{URL}/a/runs?page_token={token}")
    assert other.status_code == 422


def with_target(target: str, **more: Any) -> dict[str, Any]:
    return {**EACH, "targets": [{"target": target, **more}]}


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    (with_target("data/{when}"), 422, "/targets/0/target",
     "the target 'data/{when}' has {when}; the known fields are {step}, {time}, {name}"),
    (with_target("data/{step:04}"), 422, "/targets/0/target",
     "the target 'data/{step:04}' has a brace that belongs to no field; the known fields are {step}, "
     "{time}, {name}"),
    ({**NIGHTLY, "targets": [{"target": "data/{step}"}]}, 422, "/targets/0/target",
     "the target 'data/{step}' has {step}; the known fields are {time}, {name}"),
    (with_target("data/out"), 422, "/targets/0/target",
     "the target 'data/out' is the same for every run, so only the first could be written; add {step} or {time}, or "
     "let it be replaced (overwrite)"),
    (with_target("data/run/out-{step}"), 422, "/targets/0/target",
     "the target 'data/run/out-{step}' is in the watched directory 'data/run', where it could be mistaken for a step; "
     "choose a target outside of it"),
    (with_target("other/{step}"), 404, "/targets/0/target",
     "there is nothing at 'other/1000000' that this token may use; check root and path"),
    ({**EACH, "when": {"directory": "other/run"}}, 404, "/when/directory",
     "there is nothing at 'other/run' that this token may use; check root and path"),
    ({**NIGHTLY, "when": {**NIGHTLY["when"], "source": "other/run"}}, 404, "/when/source",
     "there is nothing at 'other/run' that this token may use; check root and path"),
    ({**NIGHTLY, "when": {**NIGHTLY["when"], "cron": "0 3 * * * *"}}, 422, "/when/cron",
     "'0 3 * * * *' is not a cron expression that is ever due: found 6 fields; give minute, hour, day of month, month "
     "and day of week, in UTC, such as '0 3 * * *'"),
    (with_target("data/{step}", layout="serving"), 422, "/targets/0/layout",
     "the layout 'serving' is not stored; store it, or give the layout's content"),
    ({**EACH, "targets": [{"target": "data/{step}"}, {"target": "data/1000000"}]}, 422, "/targets/1/target",
     "/targets/0/target and /targets/1/target are both 'data/1000000'; give each target its own path"),
    (with_target("data/{step}", to="keras"), 422, "/targets/0/target",
     "the target 'data/1000000' should have a name that ends in .weights.h5"),
    ({**with_target("data/pub/weight_v{version}", to="safetensors"), "delta": {}, "parts": 2}, 422, "/parts",
     "parts is 2, but a delta is made, and deltas are applied, by one process; leave parts out"),
    ({**EACH, "keep": 0}, 422, "/keep", "/keep: expected at least 1, found 0"),
    ({**EACH, "max_memory": "900GiB"}, 422, "/max_memory", "max_memory is 966367641600 bytes, above this server's"),
    ({**EACH, "when": {}}, 422, "/when/cron", "/when/cron: it is missing"),
    ({**EACH, "when": {"directory": "data/run", "every": 0}}, 422, "/when/every",
     "/when/every: expected at least 1, found 0"),
    ({**EACH, "when": "daily"}, 422, "/when", "/when: expected an object, found 'daily'"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "field", "detail"), REFUSED)
def test_refused_when_it_is_stored(
    served: Served, body: dict[str, Any], status: int, field: str, detail: str
) -> None:
    answer = served.ask("PUT", f"{URL}/s", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"].startswith(detail)
    assert answer.json()["field"] == field
    assert served.ask("GET", f"{URL}/s").status_code == 404


@pytest.mark.parametrize("name", ["-a", "a b", "a*", "ü", "." * 3])
def test_what_is_no_name(served: Served, name: str) -> None:
    answer = served.ask("PUT", f"{URL}/{name}", json=NIGHTLY)
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        f"{name!r} is not a valid name of a schedule; use letters, digits, dots, hyphens and underscores, with a letter or a digit "
        "first"
    )


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_verbs_are_posted(served: Served, method: str) -> None:
    answer = served.ask(method, f"{URL}/s:pause", json={})
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert answer.json()["detail"] == (
        "'s:pause' ends with an action, which takes POST only; send POST, or remove the action"
    )


def test_paused_and_resumed(served: Served) -> None:
    put(served)
    paused = served.ask("POST", f"{URL}/s:pause").json()
    assert (paused["paused"], paused["schedule"]["paused"]) == (True, True)
    assert (paused["next_at"], paused["revision"]) == (None, 2)
    resumed = served.ask("POST", f"{URL}/s:resume").json()
    assert (resumed["paused"], resumed["schedule"]["paused"]) == (False, False)
    assert resumed["next_at"].endswith("T03:00:00Z")


def test_run_now_by_the_clock(served: Served) -> None:
    put(served, paused=True, parts=4, host_labels={"disk": "nvme"})
    answer = served.ask("POST", f"{URL}/s:run", json={})
    assert answer.status_code == 202, answer.text
    run = answer.json()
    assert (run["outcome"], run["state"], run["detail"]) == ("started", "queued", "asked for")
    found = served.ask("GET", answer.headers["Location"]).json()
    assert (found["id"], found["schedule"]) == (run["conversion"], "s")
    assert (found["request"]["parts"], found["request"]["host_labels"]) == (4, {"disk": "nvme"})
    assert found.pop("waiting_for").startswith("a host with the label disk=nvme; ")
    found["waiting_for"] = None  # as in a listing
    assert served.ask("GET", "/v1/conversions?schedule=s").json()["conversions"] == [found]
    assert served.ask("GET", f"{URL}/s/runs").json()["runs"] == [run]
    assert served.ask("GET", f"{URL}/s").json()["last"] == run
    busy = served.ask("POST", f"{URL}/s:run", json={})
    assert busy.status_code == 409
    assert busy.json()["detail"] == (
        "the previous run of the schedule 's' is being converted now; wait for it to end, or cancel its conversion"
    )
    stepped = served.ask("POST", f"{URL}/s:run", json={"step": 3})
    assert (stepped.status_code, stepped.json()["field"]) == (409, "/step")
    assert stepped.json()["detail"] == (
        "the schedule 's' goes by the clock and has no steps; leave step out"
    )


def test_run_now_of_a_step(served: Served, tmp_path: Path) -> None:
    (tmp_path / "data" / "run").mkdir()
    write_step(tmp_path / "data" / "run", 5)
    write_step(tmp_path / "data" / "run", 6)
    put(served, **EACH, paused=True)
    newest = served.ask("POST", f"{URL}/s:run")
    assert (newest.status_code, newest.json()["step"]) == (202, 6)
    assert served.ask("POST", f"{URL}/s:run", json={"step": 5}).json()["key"] == "5"
    missing = served.ask("POST", f"{URL}/s:run", json={"step": 7})
    assert (missing.status_code, missing.json()["field"]) == (404, "/step")


def test_the_server_ticks(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve()
    (tmp_path / "data" / "run").mkdir()
    put(served, **EACH)
    write_step(tmp_path / "data" / "run", 5)
    until(lambda: served.wakes)
    runs = served.ask("GET", f"{URL}/s/runs").json()["runs"]
    assert [(r["key"], r["outcome"], r["state"]) for r in runs] == [("5", "started", "queued")]
    assert served.wakes == 1
    served.ask("DELETE", f"{URL}/s")
    assert served.ask("GET", f"{URL}/s/runs").status_code == 404
    assert served.ask("GET", f"/v1/conversions/{runs[0]['conversion']}").status_code == 200


def test_a_directory_that_is_none_is_told(served: Served) -> None:
    (Path(str(served.app.state.services.settings.roots["data"])) / "file").write_text("no folder")
    body = {"when": {"directory": "data/file"}, "targets": [{"target": "data/o/{step}"}]}
    assert served.ask("PUT", f"{URL}/s", json=body).status_code == 201
    answer = served.ask("POST", f"{URL}/s:run")
    assert (answer.status_code, answer.json()["field"]) == (422, "/when/directory")
    assert answer.json()["detail"] == (
        "the directory 'data/file' cannot be read: Not a directory; correct it, or the schedule"
    )
