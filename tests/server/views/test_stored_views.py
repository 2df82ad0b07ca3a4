"""Stored views: versions, owners and quotas as those of maps; contents of stored ones stand in them; seen by those who may read their roots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.postgres import Postgres
from tests.server.served import Served
from tests.server.views.run import LAYOUT, MAP, listed, put, refused

URL = "/v1/views"


@pytest.fixture(params=["sqlite", "postgres"])
def each(
    request: pytest.FixtureRequest, serve: Callable[..., Served], postgres: Postgres
) -> Callable[..., Served]:
    """Makes an application with settings, on each kind of database."""
    url = {"database_url": postgres.new_database()} if request.param == "postgres" else {}
    return lambda **settings: serve(**settings, **url)


def test_versions_are_counted_and_kept(each: Callable[..., Served]) -> None:
    served = each()
    first, again, second = put(served), put(served), put(served, step="latest", cast=[["float", "bfloat16"]])  # fmt: skip
    assert [a.status_code for a in (first, again, second)] == [201, 200, 201]
    assert (first.headers["Location"], second.headers["ETag"]) == (f"{URL}/v@1", '"v-2"')
    rules = {"source": "data/run", "step": "latest", "cast": [["float", "bfloat16"]]}
    assert served.ask("GET", f"{URL}/v", "eve").json() == second.json()
    assert (second.json()["version"], second.json()["view"]) == (2, rules)
    assert served.ask("GET", f"{URL}/v@1").json()["view"] == {"source": "data/run"}
    found = served.ask("GET", f"{URL}/v/versions").json()["versions"]
    assert [(v["version"], v["view"]) for v in found] == [(2, rules), (1, {"source": "data/run"})]
    [one] = served.ask("GET", URL, params={"prefix": "v"}).json()["views"]
    assert (one["name"], one["version"], one["created_by"]) == ("v", 2, "ann")
    stale = {"If-Match": '"v-1"'}
    assert served.ask("DELETE", f"{URL}/v", headers=stale).status_code == 412
    assert put(served, who="bob").status_code == 403
    assert served.ask("DELETE", f"{URL}/v", "bob").status_code == 403
    assert served.ask("DELETE", f"{URL}/v").status_code == 204
    for path in ("v", "v@1", "v/versions", "v/revisions", "v/files", "v/loads"):
        status, detail = refused(served.ask("GET", f"{URL}/{path}"))
        assert (status, detail.partition(";")[2]) == (404, " list them at /v1/views, or store one")
    assert put(served, who="bob").json()["version"] == 3


def test_quotas_have_settings_of_their_own(each: Callable[..., Served]) -> None:
    served = each(views_per_token=1, view_versions=2, view_bytes=1024)
    assert put(served).status_code == 201
    for said, answer in (
        ("its setting views_per_token", put(served, "other")),
        ("its setting view_bytes", put(served, select=["x" * 1000])),
    ):
        status, detail = refused(answer)
        assert status == 409 and said in detail
    assert put(served, step=1).status_code == 201
    assert "its setting view_versions" in refused(put(served, step=2))[1]


def test_contents_of_stored_layouts_and_maps_stand_in_the_version(served: Served) -> None:
    for path, body in (("maps/hf", {"map": MAP}), ("layouts/two", {"layout": LAYOUT})):
        assert served.ask("PUT", f"/v1/{path}", json=body).status_code == 201
    made = put(served, map="hf", files="ranks", layout="two").json()["view"]
    assert made == {"source": "data/run", "map": MAP, "files": "ranks", "layout": LAYOUT}
    assert put(served, "old", map="hf@1").json()["view"]["map"] == MAP
    assert put(served, "recipe", map="vllm-llama3").json()["view"]["map"] == "vllm-llama3"
    assert served.ask("DELETE", "/v1/maps/hf").status_code == 204
    assert served.ask("GET", f"{URL}/v").json()["view"]["map"] == MAP


@pytest.mark.parametrize(
    ("rules", "field", "said"),
    [
        ({"map": "unknown"}, "/view/map", "the map 'unknown' is not stored; store it, or give the map's content"),
        ({"layout": "unknown"}, "/view/layout", "the layout 'unknown' is not stored; store it, or give the layout's content"),
        ({"map": {"map": []}}, "/view/map", "expected a list of at least one rule, found []"),
        ({"sizes": {"h": 2}}, "/view/sizes", "sizes are for a map, but no map is given"),
        ({"mesh": "data=0"}, "/view/mesh", "each size of a mesh must"),
        ({"cast": [["float", "float7"]]}, "/view/cast", "float7"),
        ({"compression": "zstd"}, "/view", "compression"),
        ({"select": ["("]}, "/view/select", "'('"),
        ({"source": "data/../x"}, "/view/source", "'data/../x'"),
        ({"source": "none/x"}, "/view/source", "nothing at 'none/x'"),
        ({"config": "other/x"}, "/view/config", "nothing at 'other/x'"),
        ({"lora": ["other/x=0.5"]}, "/view/lora/0", "nothing at 'other/x'"),
        ({"quantize_like": "other/x"}, "/view/quantize_like", "nothing at 'other/x'"),
        ({"to": None}, "/view/to", "'safetensors'"),
        ({"step": "newest"}, "/view/step", "'each'"),
        ({"overwrite": True}, "/view/overwrite", "there is no member of this name"),
        ({"ocdbt": True}, "/view/ocdbt", "there is no member of this name"),
        ({"target": "data/x"}, "/view/target", "there is no member of this name"),
    ],
)  # fmt: skip
def test_what_is_not_stored(served: Served, rules: dict[str, Any], field: str, said: str) -> None:
    answer = put(served, **rules)
    assert answer.status_code in (404, 422), answer.text
    assert said in answer.text.replace('\\"', '"').replace("\\'", "'")
    wrong = answer.json()
    assert field in (wrong.get("field"), *(e["field"].partition("/literal")[0] for e in wrong.get("errors", ())))  # fmt: skip
    assert served.ask("GET", URL).json()["views"] == []


@pytest.mark.parametrize("member", ["source", "config", "lora", "quantize_like"])
def test_only_those_who_may_read_its_roots_learn_of_a_view(served: Served, member: str) -> None:
    rules = {member: ["data/run", "other/run=0.5"] if member == "lora" else "other/run"}
    assert put(served, "both", "bob", **rules).status_code == 201
    assert put(served, "mine").status_code == 201

    def seen(who: str) -> list[str]:
        return [view["name"] for view in served.ask("GET", URL, who).json()["views"]]

    assert (seen("ann"), seen("bob"), seen("root")) == (["mine"], ["both", "mine"], ["both", "mine"])  # fmt: skip
    for path in ("both", "both@1", "both/versions", "both/revisions", "both/files", "both/loads"):
        missing = served.ask("GET", f"{URL}/{path.replace('both', 'none')}")
        assert refused(served.ask("GET", f"{URL}/{path}")) == (
            404, missing.json()["detail"].replace("none", "both"),
        )  # fmt: skip
    assert refused(served.ask("DELETE", f"{URL}/both"))[0] == 404
    assert served.ask("GET", f"{URL}/both", "bob").status_code == 200


def test_a_version_of_a_newer_server_is_refused(served: Served) -> None:
    from reshard_server.db.stored import versions
    from reshard_server.db.stored.kinds import VIEW

    rules = {"source": "data/run", "colour": "red"}
    versions.put(served.db, VIEW, "v", rules, token="ann", is_admin=False, expected=lambda _: True)
    for answer in (listed(served), served.ask("GET", f"{URL}/v/revisions")):
        assert refused(answer) == (
            409,
            "the view 'v' was recorded by another version of the server, and this one cannot read it; ask a server of the version that recorded it",
        )
    assert served.ask("GET", f"{URL}/v").json()["view"] == rules
