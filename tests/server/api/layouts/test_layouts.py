"""Named layouts: every version is kept; only owners change them, and only if nothing changed meanwhile."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from reshard_server.db.database import open_database
from reshard_server.db.stored import versions
from reshard_server.db.stored.kinds import LAYOUT, content_then
from reshard_server.errors.problems import ProblemError
from reshard_server.settings import Settings

from reshard.errors import LayoutError
from tests.server.served import Served
from tests.server.threads import run_together

URL = "/v1/layouts"


def content(size: int = 2) -> dict[str, Any]:
    rules = [{"match": "kernel", "axes": [None, "x"]}]
    return {"mesh": {"axes": ["x"], "shape": [size]}, "rules": rules}


def put(served: Served, size: int = 2, name: str = "serving", who: str = "ann", **headers: str) -> httpx.Response:  # fmt: skip
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    return served.ask("PUT", f"{URL}/{name}", who, json={"layout": content(size)}, headers=named)


def test_versions_are_counted_and_kept(served: Served) -> None:
    first, again, second = put(served), put(served), put(served, 4)
    assert [a.status_code for a in (first, again, second)] == [201, 200, 201]
    assert first.json() == again.json()
    assert first.headers["Location"] == f"{URL}/serving@1"
    assert second.headers["ETag"] == '"serving-2"'
    found = served.ask("GET", f"{URL}/serving", "eve")
    assert found.json() == second.json()
    assert (found.json()["version"], found.json()["layout"]) == (2, content(4))
    assert found.json()["created_by"] == "ann"
    assert served.ask("GET", first.headers["Location"]).json()["layout"] == content(2)
    listed = served.ask("GET", f"{URL}/serving/versions").json()
    assert [v["version"] for v in listed["versions"]] == [2, 1]


def test_true_is_not_one(served: Served) -> None:
    for axis in (1, 1.0):
        body = {"layout": {"mesh": {"axes": ["x"], "shape": [axis]}}}
        served.ask("PUT", f"{URL}/odd", json=body)
    assert served.ask("GET", f"{URL}/odd").json()["version"] == 1  # 1.0 was refused


def test_polled_by_etag(served: Served) -> None:
    tag = put(served).headers["ETag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        same = served.ask("GET", f"{URL}/serving", headers={"If-None-Match": known})
        assert (same.status_code, same.headers["ETag"], same.content) == (304, tag, b"")
    put(served, 4)
    changed = served.ask("GET", f"{URL}/serving", headers={"If-None-Match": tag})
    assert changed.status_code == 200


def test_changed_only_where_nothing_changed_meanwhile(served: Served) -> None:
    assert put(served, if_match="*").status_code == 412
    assert put(served, if_none_match="*").status_code == 201
    refused = put(served, 4, if_none_match="*")
    assert refused.status_code == 412
    assert refused.json() == {
        "type": "urn:reshard:problem:precondition-failed",
        "title": "It has changed meanwhile",
        "status": 412,
        "detail": "the layout 'serving' is not as the request expects: it has version 1; read it again, and send the "
        "request with its ETag",
        "remedy": "read it again, and send the request with its ETag",
        "instance": f"{URL}/serving",
    }
    assert put(served, 4, if_match='"serving-1"').status_code == 201
    assert put(served, 8, if_match='"serving-1"').status_code == 412
    delete = served.ask("DELETE", f"{URL}/serving", headers={"If-Match": '"serving-1"'})
    assert delete.status_code == 412
    delete = served.ask("DELETE", f"{URL}/serving", headers={"If-Match": '"serving-2"'})
    assert delete.status_code == 204
    assert "there is none" in put(served, if_match='"serving-2"').json()["detail"]


def test_deleted_versions_are_gone_and_no_number_comes_twice(served: Served) -> None:
    put(served), put(served, 4)
    assert served.ask("DELETE", f"{URL}/serving").status_code == 204
    for path in ("serving", "serving@1", "serving@2", "serving/versions"):
        answer = served.ask("GET", f"{URL}/{path}")
        assert answer.status_code == 404
        assert answer.json()["detail"].startswith("there is no layout 'serving")
    assert served.ask("DELETE", f"{URL}/serving").status_code == 404
    assert served.ask("GET", URL).json()["layouts"] == []
    assert put(served, who="bob").json()["version"] == 3
    assert served.ask("GET", f"{URL}/serving@2").status_code == 404


def test_a_name_belongs_to_the_token_that_stored_it(served: Served) -> None:
    put(served)
    refused = [put(served, 4, who="bob"), served.ask("DELETE", f"{URL}/serving", "bob")]
    for answer in refused:
        assert answer.status_code == 403
        assert answer.json()["detail"] == (
            "the layout 'serving' belongs to another token, so this one may not change it; take another name, or ask an admin"
        )
    assert put(served, 4, who="eve").status_code == 403
    assert put(served, 4, who="root").status_code == 201
    assert served.ask("GET", f"{URL}/serving", None).status_code == 401


def test_listed_by_name_in_pages(served: Served) -> None:
    for name in ("b", "a", "C", "a.1", "a_%"):
        put(served, name=name)
    put(served, 4, name="a")
    names, token = [], None
    while True:
        found = served.ask("GET", URL, params={"page_size": 2, **({"page_token": token} if token else {})}).json()  # fmt: skip
        names += [(x["name"], x["version"]) for x in found["layouts"]]
        token = found["next_page_token"]
        if token is None:
            break
    assert names == [("C", 1), ("a", 2), ("a.1", 1), ("b", 1)]
    for prefix, count in (("a", 2), ("a.", 1), ("%", 0), ("_", 0)):
        assert len(served.ask("GET", URL, params={"prefix": prefix}).json()["layouts"]) == count
    page = served.ask("GET", URL, params={"page_size": 1}).json()["next_page_token"]
    refused = served.ask("GET", URL, params={"page_token": page, "prefix": "a"})
    assert refused.status_code == 422


def test_versions_in_pages(served: Served) -> None:
    for size in (2, 4, 8):
        put(served, size)
    first = served.ask("GET", f"{URL}/serving/versions", params={"page_size": 2}).json()
    rest = {"page_size": 2, "page_token": first["next_page_token"]}
    second = served.ask("GET", f"{URL}/serving/versions", params=rest).json()
    found = first["versions"] + second["versions"]
    assert [v["version"] for v in found] == [3, 2, 1]
    assert second["next_page_token"] is None


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"mesh": {"axes": ["x"], "shape": [0]}}, "mesh"),
        ({"rules": [{"match": "(", "axes": []}]}, "is no regular expression"),
        ({"rulez": []}, "rulez"),
        ({"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "a", "axes": ["y"]}]}, "'y'"),
        ({"cast": [{"match": "a", "dtype": "float17"}]}, "float17"),
    ],
)
def test_a_layout_that_makes_no_sense(served: Served, layout: dict[str, Any], words: str) -> None:
    answer = served.ask("PUT", f"{URL}/serving", json={"layout": layout})
    assert answer.status_code == 422
    found = answer.json()
    assert (found["type"], found["field"]) == ("urn:reshard:problem:layout", "/layout"), found
    assert words in found["detail"]
    assert served.ask("GET", f"{URL}/serving").status_code == 404


@pytest.mark.parametrize("name", ["a@1", ".a", "a b", "ü", "a" * 129, "a%2Fb"])
def test_what_is_no_name(served: Served, name: str) -> None:
    assert put(served, name=name).status_code in (404, 405, 422)
    assert served.ask("GET", URL).json()["layouts"] == []


@pytest.mark.parametrize("text", ["serving@0", "serving@3", "serving@9999999999", "other", "other@1"])  # fmt: skip
def test_what_is_not_stored(served: Served, text: str) -> None:
    put(served), put(served, 4)
    assert served.ask("GET", f"{URL}/{text}").status_code == 404
    body = {"source": "data/a", "target": "data/b", "layout": text}
    answer = served.ask("POST", "/v1/conversions", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "/layout")
    assert f"the layout {text!r} is not stored" in answer.json()["detail"]
    assert served.ask("POST", "/v1/conversions", json={**body, "layout": "serving@1"}).status_code == 202  # fmt: skip


def test_a_conversion_keeps_the_layout_that_it_was_accepted_with(served: Served) -> None:
    put(served)
    time.sleep(0.01)
    accepted = time.time()
    time.sleep(0.01)
    put(served, 4)
    assert content_then(served.db, LAYOUT, "serving", accepted) == content(2)
    assert content_then(served.db, LAYOUT, "serving", time.time()) == content(4)
    served.create(layout="serving")
    served.ask("DELETE", f"{URL}/serving")
    assert content_then(served.db, LAYOUT, "serving", accepted) == content(2)
    assert content_then(served.db, LAYOUT, "serving@2", accepted) == content(4)
    assert versions.get(served.db, LAYOUT, "serving") is None
    with pytest.raises(
        LayoutError, match="the layout 'none' is not stored; store it, or give the layout's content"
    ):
        content_then(served.db, LAYOUT, "none", accepted)


def test_of_many_who_store_at_once_each_gets_its_own_version(tmp_path: Path) -> None:
    db = open_database(Settings(state=tmp_path))
    stored: list[int] = []
    refused: list[ProblemError] = []

    def store(size: int, expected: versions.Expected) -> None:
        try:
            found, _ = versions.put(db, LAYOUT, "x", content(size), token="ann", is_admin=False, expected=expected)  # fmt: skip
            stored.append(found.version)
        except ProblemError as problem:
            refused.append(problem)

    def together(expected: versions.Expected) -> None:
        run_together([partial(store, size, expected) for size in range(1, 6)])

    together(lambda _: True)
    assert sorted(stored) == [1, 2, 3, 4, 5]
    stored.clear()
    together(lambda now: now is not None and now.version == 5)
    found = versions.get(db, LAYOUT, "x")
    assert found is not None
    assert set(stored) == {found.version} or set(stored) == {5, 6}  # 5: whose content it has
    assert all(p.kind.status == 412 for p in refused)
    assert len(stored) + len(refused) == 5
    db.dispose()
