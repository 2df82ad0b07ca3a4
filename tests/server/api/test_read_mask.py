"""``fields``: answers with the members that were asked for, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.api.answers import narrowed, parsed
from reshard_server.app import create_app
from reshard_server.db.tables import CONVERSIONS
from reshard_server.errors.problems import ProblemError
from reshard_server.schemas.base import MEANT
from reshard_server.settings import Settings

from tests.server.served import Served

URL = "/v1/conversions"
TENSORS = 30_000


def report(tensors: int = 3) -> dict[str, Any]:
    tensor = {"source": "a", "target": "a", "shape": [4], "source_dtype": "float32", "target_dtype": "float32",
              "strategy": "copy", "nbytes": 16, "source_digest": "0" * 16, "target_digest": "0" * 16, "proof": "written",
              "cast": None}  # fmt: skip
    return {"command": "convert", "source": "data/a", "target": "data/b", "tensors": [tensor] * tensors, "nbytes": 16,
            "read_bytes": 16, "moved_bytes": 16, "written_bytes": 16, "seconds": 1.5, "warnings": [], "resumed_bytes": 0,
            "already_done": False}  # fmt: skip


def ended(served: Served, tensors: int = 3) -> str:
    """A conversion that has succeeded, as the records have it."""
    made = served.create()
    values = {"state": "succeeded", "result": [report(tensors)], "revision": 9}
    with served.db.begin() as connection:
        connection.execute(sa.update(CONVERSIONS).where(CONVERSIONS.c.id == made).values(values))
    return made


def data_of(text: str) -> dict[str, Any]:
    """The document of the last event of a stream."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return dict(json.loads(lines[-1].removeprefix("data: ")))


def test_only_what_is_asked_for(served: Served) -> None:
    made = ended(served)

    def got(fields: str) -> Any:
        answer = served.ask("GET", f"{URL}/{made}", params={"fields": fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert got("id,state") == {"id": made, "state": "succeeded"}
    assert got("result.target, result.seconds") == {
        "result": [{"target": "data/b", "seconds": 1.5}]
    }
    assert got("result.tensors.target,done") == {
        "done": True,
        "result": [{"tensors": [{"target": "a"}] * 3}],
    }
    assert got("request.source,request") == {"request": got("*")["request"]}
    assert got("*") == served.ask("GET", f"{URL}/{made}").json()
    assert got("*")["result"] == [report()]
    assert got("*")["result_url"] is None


def test_a_report_of_many_tensors_is_sent_where_it_is_asked_for_only(served: Served) -> None:
    made = ended(served, TENSORS)
    whole = served.ask("GET", f"{URL}/{made}")
    assert len(whole.content) > 5_000_000 and len(whole.json()["result"][0]["tensors"]) == TENSORS
    some = served.ask(
        "GET", f"{URL}/{made}", params={"fields": "state,result.nbytes,result.seconds"}
    )
    assert len(some.content) < 1000
    events = served.ask("GET", f"{URL}/{made}/events")
    assert len(events.content) < 5000
    told = data_of(events.text)
    assert told["result"] == [
        {**{k: v for k, v in report().items() if k != "tensors"}, "tensor_count": TENSORS}
    ]
    assert served.ask("GET", told["result_url"]).json()["result"] == whole.json()["result"]
    listed = served.ask("GET", URL).json()["conversions"][0]
    assert (listed["result"], listed["result_url"]) == (None, f"{URL}/{made}")


def test_events_take_fields(served: Served) -> None:
    made = ended(served)
    path = f"{URL}/{made}/events"
    assert data_of(served.ask("GET", path, params={"fields": "*"}).text)["result"] == [report()]
    assert data_of(served.ask("GET", path, params={"fields": "state"}).text) == {
        "state": "succeeded"
    }
    refused = served.ask("GET", path, params={"fields": "stat"})
    assert refused.status_code == 422
    assert "there is no member 'stat'; known: id, state, done, request," in refused.json()["detail"]


def test_lists_and_other_answers_take_fields(served: Served) -> None:
    made = served.create()
    answer = served.ask("GET", URL, params={"fields": "conversions.id,next_page_token"})
    assert answer.json() == {"conversions": [{"id": made}], "next_page_token": None}
    body = {"layout": {"rules": [{"match": "a", "axes": []}]}}
    assert served.ask("PUT", "/v1/layouts/one?fields=version", json=body).json() == {"version": 1}
    listed = served.ask("GET", "/v1/layouts?fields=layouts.name,layouts.layout.rules").json()
    assert listed == {"layouts": [{"name": "one", "layout": {"rules": body["layout"]["rules"]}}]}
    assert served.ask("GET", "/v1/layouts/one/versions?fields=versions.version").json() == {
        "versions": [{"version": 1}]
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            "colour",
            "fields: there is no member 'colour'; known: id, state, done, request, progress, result,",
        ),
        (
            "result.tensors.colour",
            "there is no member 'result.tensors.colour'; known: source, target, shape,",
        ),
        ("error.colour", "there is no member 'error.colour'; known: type, title, status, detail,"),
        ("state.x", "there is no member 'state.x'; 'state' has no members"),
        ("", "expected names of members, separated by commas, such as 'id,state', found ''"),
        ("id,,state", "expected names of members"),
        ("id.", "expected names of members"),
        (".".join("a" * 2000), "expected names of members"),
    ],
)
def test_what_makes_no_sense(served: Served, fields: str, words: str) -> None:
    answer = served.ask("GET", f"{URL}/{ended(served)}", params={"fields": fields})
    assert (answer.status_code, answer.json()["field"]) == (422, "fields")
    assert words in answer.json()["detail"]


def test_nothing_is_done_where_fields_make_no_sense(served: Served) -> None:
    body = {"source": "data/a", "target": "data/b"}
    assert served.ask("POST", f"{URL}?fields=colour", json=body).status_code == 422
    assert served.ask("GET", URL).json()["conversions"] == []
    assert served.ask("POST", f"{URL}?fields=state", json=body).json() == {"state": "queued"}


def test_problems_are_told_whole(served: Served) -> None:
    answer = served.ask("GET", f"{URL}/none", params={"fields": "id"})
    assert answer.status_code == 404 and "there is no conversion 'none'" in answer.json()["detail"]


def test_a_member_that_is_asked_for_whole_stays_whole() -> None:
    document = {"a": {"b": 1, "c": [{"d": 2, "e": 3}]}, "f": 4}
    for fields in ("a.b,a", "a,a.b"):
        assert narrowed(document, parsed(fields)) == {"a": document["a"]}
    assert narrowed(document, parsed("a.c.d, f")) == {"a": {"c": [{"d": 2}]}, "f": 4}
    with pytest.raises(ProblemError):
        parsed("a..b")


def test_what_is_told_of_a_tensor_is_what_the_library_tells() -> None:
    from reshard.conversion.report import TensorReport

    described = create_app(Settings()).openapi()["components"]["schemas"]
    told = described["TargetReport"]["properties"]["tensors"]["anyOf"][0]["items"]["$ref"]
    exact = described[told.rpartition("/")[2]][MEANT]
    assert tuple(exact["properties"]) == TensorReport.__struct_fields__
