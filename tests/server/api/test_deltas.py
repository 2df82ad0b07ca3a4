"""Deltas by HTTP: checked when they are asked for, recorded as conversions of their own form, listed by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter
from reshard_server.db.documents import UnreadableError, read, recorded
from reshard_server.schemas.conversion import (
    ConversionRequest,
    OneDelta,
)

from tests.server.served import Served

URL = "/v1/deltas"
ONE = {"old": "data/a", "new": "data/b", "target": "data/w/weight_v000007"}
MAP = {"map": [{"from": "w", "to": "up.weight", "shape": "i o -> o i"}]}


def test_a_delta_is_a_conversion_of_its_own_form(served: Served) -> None:
    answer = served.ask("POST", URL, json={**ONE, "map": MAP, "labels": {"run": "7"}})
    made = answer.json()
    assert (answer.status_code, answer.headers["Location"]) == (
        202,
        f"/v1/conversions/{made['id']}",
    )
    assert (made["state"], made["request"]["new"], served.wakes) == ("queued", "data/b", 1)
    assert served.ask("GET", answer.headers["Location"]).json() == made
    stopped = served.ask("POST", f"{answer.headers['Location']}:cancel").json()
    assert stopped["state"] == "cancelled"


def test_a_delta_for_modelexpress_has_any_id(served: Served) -> None:
    named = {"target": "data/w/v7", "receiver": "modelexpress", "base_version": "v6"}
    assert served.ask("POST", URL, json={**ONE, **named}).status_code == 202


def test_deltas_are_listed_by_themselves(served: Served) -> None:
    conversion = served.create()
    delta = served.ask("POST", URL, json=ONE).json()["id"]
    listed = [c["id"] for c in served.ask("GET", URL).json()["conversions"]]
    assert listed == [delta]
    both = [c["id"] for c in served.ask("GET", "/v1/conversions?page_size=1").json()["conversions"]]
    assert both == [delta]
    more = served.ask("GET", "/v1/conversions").json()["conversions"]
    assert [c["id"] for c in more] == [delta, conversion]
    assert served.ask("GET", f"{URL}?source=data/x").json()["conversions"] == []
    assert served.ask("GET", URL, "bob").json()["conversions"] == []


def test_the_same_key_leads_to_the_same_delta(served: Served) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = served.ask("POST", URL, json=ONE, headers=key).json()
    assert served.ask("POST", URL, json=ONE, headers=key).json() == first
    other = served.ask("POST", "/v1/conversions", json={"source": "data/a", "target": "data/b"}, headers=key)  # fmt: skip
    assert (other.status_code, other.json()["title"]) == (
        422, "The Idempotency-Key belongs to another request",
    )  # fmt: skip


def test_a_stored_map_is_used_in_the_version_that_it_has_now(served: Served) -> None:
    assert served.ask("PUT", "/v1/maps/to_hf", json={"map": MAP}).status_code in (200, 201)
    made = served.ask("POST", URL, json={**ONE, "map": "to_hf"}).json()
    assert made["request"]["map"] == "to_hf@1"


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"old": "other/a"}, 404, "/old", "there is nothing at 'other/a' that this token may use; check root and path"),
    ({"new": "nowhere/a"}, 404, "/new", "there is nothing at 'nowhere/a' that this token may use; check root and path"),
    ({"target": "other/weight_v000001"}, 404, "/target",
     "there is nothing at 'other/weight_v000001' that this token may use; check root and path"),
    ({"target": "data/a/weight_v000001"}, 422, "/target",
     "the target 'data/a/weight_v000001' is inside the source 'data/a'; choose a target outside of it"),
    ({"old": "data/weight_v000001", "target": "data/weight_v000001"}, 422, "/target",
     "the target 'data/weight_v000001' is the source itself; choose another target"),
    ({"target": "data/w/v7"}, 422, "/target",
     "the target 'data/w/v7' should have the name of a version from 1, weight_v and at least six digits, by which receivers find it; name it "
     "such as weight_v000007"),
    ({"target": "data/w/weight_v000000"}, 422, "/target", "the target 'data/w/weight_v000000' should have the name of a version from 1, "),
    ({"base_version": 7}, 422, "/base_version",
     "base_version is 7, but the target is the version 000007, which stands on an earlier one; give an earlier base version, or leave it out"),
    ({"base_version": -1}, 422, "/base_version", "base_version is -1, but the target is the version 000007"),
    ({"encoding": "diff"}, 422, "/encoding", "/encoding: expected 'xor' or 'overwrite', found 'diff'"),
    ({"checksum": "crc32"}, 422, "/checksum", "/checksum: expected 'xxh3-128', 'blake3' or 'adler32', found 'crc32'"),
    ({"map": "to_hf"}, 422, "/map", "the map 'to_hf' is not stored; store it, or give the map's content"),
    ({"map": {"map": []}}, 422, "/map", "expected a list of at least one rule"),
    ({"select": ["("]}, 422, "/select", "select '(' is no regular expression"),
    ({"sizes": {"b": 2}}, 422, "/sizes", "sizes are for a map, but no map is given"),
    ({"file_bytes": 0}, 422, "/file_bytes", "file_bytes is 0; expected a whole number of at least 1 (bytes, such as 5GB), or leave it out for the default"),
    ({"file_bytes": "much"}, 422, "/file_bytes", "much"),
    ({"layouts": {}}, 422, "/layouts", "/layouts: there is no member of this name; correct the name, or leave it out"),
    ({"layout": "serving"}, 422, "/layout", "the layout 'serving' is not stored"),
    ({"layout": {"rename": 3}}, 422, "/layout", "rename"),
    ({"max_memory": "2GiB"}, 422, "/max_memory", "max_memory is 2147483648 bytes, above this server's ceiling of 1073741824"),
    ({"workers": 3}, 422, "/workers", "workers is 3 threads, above this server's ceiling of 2"),
    ({"run_seconds": 0.5}, 422, "/run_seconds", "/run_seconds: expected at least 1.0, found 0.5"),
    ({"old": None}, 422, "/old", "/old: expected text, found null"),
]  # fmt: skip


@pytest.fixture
def bounded(serve: Any) -> Served:
    found: Served = serve(max_memory=1 << 30, workers=2)
    return found


def test_what_is_refused_at_once(bounded: Served) -> None:
    for more, status, field, said in REFUSED:
        answer = bounded.ask("POST", URL, json={**ONE, **more})
        assert answer.status_code == status, (more, answer.text)
        assert (answer.json()["field"], said in answer.json()["detail"]) == (field, True), (
            answer.text
        )
    assert bounded.wakes == 0


def test_a_delta_needs_the_right_to_convert(served: Served) -> None:
    assert served.ask("POST", URL, "eve", json=ONE).status_code == 403


def test_a_delta_without_a_body_says_what_it_needs(served: Served) -> None:
    answer = served.ask("POST", URL, json={"old": "data/a"}).json()
    assert [wrong["field"] for wrong in answer["errors"]] == ["/new", "/target"]


def test_what_is_over_a_source_is_checked_too(served: Served) -> None:
    body = {"source": "data/a", "target": "data/b"}
    for deltas, status, field, said in (
        (["other/w"], 404, "/deltas/0", "there is nothing at 'other/w' that this token may use"),
        (["data/v1", "data/b"], 422, "/target", "the target 'data/b' is the source itself"),
    ):  # fmt: skip
        answer = served.ask("POST", "/v1/conversions", json={**body, "deltas": deltas})
        assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text
        assert said in answer.json()["detail"]
    made = served.ask("POST", "/v1/conversions", json={**body, "deltas": ["data/v1"]}).json()
    assert made["request"]["deltas"] == ["data/v1"]
    plain = served.ask("POST", "/v1/conversions", json=body).json()
    assert "deltas" not in plain["request"]


def test_a_server_of_before_leaves_deltas_to_others() -> None:
    """Such a server knows the forms of conversions only; what it cannot read it hands back."""
    before: TypeAdapter[Any] = TypeAdapter(ConversionRequest)
    with pytest.raises(UnreadableError, match="was recorded by another version of the server"):
        read(before, recorded(OneDelta(**ONE)), "the conversion")
