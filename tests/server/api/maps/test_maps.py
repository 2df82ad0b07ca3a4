"""Named maps: versions, owners and quotas as those of layouts, and conversions that name one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import conversions
from reshard_server.db.stored.kinds import MAP, content_then
from reshard_server.db.tables import MAPS
from reshard_server.jobs.conversion_job import make_child_request

from reshard.errors import LayoutError
from tests.server.postgres import Postgres
from tests.server.served import Served

URL = "/v1/maps"
RULE = {"from": "w", "to": "served.weight", "shape": "a b -> b a"}
TEXT = "# for people\nmap:\n- {from: w, to: served.weight, shape: a b -> b a}\n"
RECIPE = "maxtext-qwen3"


def content(to: str = "served.weight") -> dict[str, Any]:
    return {"map": [{**RULE, "to": to}]}


def put(served: Served, given: Any, name: str = "hf", who: str = "ann", **headers: str) -> httpx.Response:  # fmt: skip
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    return served.ask("PUT", f"{URL}/{name}", who, json={"map": given}, headers=named)


@pytest.fixture(params=["sqlite", "postgres"])
def each(
    request: pytest.FixtureRequest, serve: Callable[..., Served], postgres: Postgres
) -> Callable[..., Served]:
    """Makes an application with settings, on each kind of database."""
    url = {"database_url": postgres.new_database()} if request.param == "postgres" else {}
    return lambda **settings: serve(**settings, **url)


def test_versions_are_counted_and_kept(each: Callable[..., Served]) -> None:
    served = each()
    first, again, second = put(served, content()), put(served, content()), put(served, TEXT)
    assert [a.status_code for a in (first, again, second)] == [201, 200, 201]
    assert (first.headers["Location"], second.headers["ETag"]) == (f"{URL}/hf@1", '"hf-2"')
    found = served.ask("GET", f"{URL}/hf", "eve").json()
    assert found == second.json()
    assert (found["version"], found["map"], found["created_by"]) == (2, TEXT, "ann")
    assert served.ask("GET", f"{URL}/hf@1").json()["map"] == content()
    listed = served.ask("GET", f"{URL}/hf/versions").json()["versions"]
    assert [(v["version"], v["map"]) for v in listed] == [(2, TEXT), (1, content())]
    [one] = served.ask("GET", URL, params={"prefix": "h"}).json()["maps"]
    assert (one["name"], one["version"]) == ("hf", 2)
    assert served.ask("GET", "/v1/layouts").json()["layouts"] == []
    known = served.ask("GET", f"{URL}/hf", headers={"If-None-Match": '"hf-2"'})
    assert (known.status_code, known.content) == (304, b"")
    assert put(served, content("x"), if_match='"hf-1"').status_code == 412
    assert (
        put(served, content("x"), if_none_match="*")
        .json()["detail"]
        .startswith("the map 'hf' is not as the request expects: it has version 2; read it again")
    )
    assert put(served, content("x"), who="bob").json()["detail"] == (
        "the map 'hf' belongs to another token, so this one may not change it; take another name, or ask an admin"
    )
    assert served.ask("DELETE", f"{URL}/hf", "bob").status_code == 403
    assert served.ask("DELETE", f"{URL}/hf").status_code == 204
    for path in ("hf", "hf@1", "hf/versions"):
        gone = served.ask("GET", f"{URL}/{path}")
        assert gone.status_code == 404
        assert gone.json()["detail"].startswith("there is no map 'hf")
        assert gone.json()["detail"].endswith("; list them at /v1/maps, or store one")
    assert put(served, content(), who="bob").json()["version"] == 3


@pytest.mark.parametrize(
    ("given", "name", "field", "said"),
    [
        ({"map": []}, "hf", "/map", "map: expected a list of at least one rule, found []"),
        (TEXT.replace("->", "=>"), "hf", "/map", "map:3: map[0].shape: "),
        ("hf", "hf", "/map", "map is 'hf'; send the content of a map file: an object, or text of several lines"),
        (RECIPE, "hf", "/map", f"map is '{RECIPE}'; send the content of a map file"),
        ("/etc/passwd", "hf", "/map", "map is '/etc/passwd'; send the content of a map file"),
        (content(), RECIPE, "name", f"'{RECIPE}' is the name of a recipe, which comes with the server; choose another name"),
        ({**content(), "mesh": {"x": 2}, "rules": [{"match": "w", "axes": ["y"]}]}, "hf", "/map", "'y'"),
    ],
)  # fmt: skip
def test_what_is_not_stored(served: Served, given: Any, name: str, field: str, said: str) -> None:
    answer = put(served, given, name)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert said in answer.json()["detail"]
    assert served.ask("GET", URL).json()["maps"] == []


def test_quotas_have_settings_of_their_own(each: Callable[..., Served]) -> None:
    served = each(maps_per_token=1, map_versions=1, map_bytes=2000)
    assert put(served, content()).status_code == 201
    for name, words, setting in (
        ("hf", "2 versions of the map 'hf' would be stored", "map_versions"),
        ("b", "2 maps would be stored by the token 'ann'", "maps_per_token"),
    ):
        answer = put(served, content("x"), name)
        assert (answer.status_code, answer.json()["quota"]) == (409, setting)
        assert answer.json()["detail"].startswith(words)
    heavy = put(served, {"about": "x" * 2000, **content()}, "c", "bob").json()
    assert heavy["detail"].endswith(
        "delete maps that are not needed, or have the setting map_bytes raised"
    )


def test_a_conversion_shows_and_keeps_its_version(each: Callable[..., Served]) -> None:
    served = each()
    put(served, content()), put(served, TEXT)
    one = served.create(map="hf")
    several = served.ask("POST", "/v1/conversions", json={
        "source": "data/a", "targets": [{"target": "data/c", "map": "hf@1"}, {"target": "data/d", "map": RECIPE}, {"target": "data/e", "map": TEXT}],
    }).json()  # fmt: skip
    assert served.ask("GET", f"/v1/conversions/{one}").json()["request"]["map"] == "hf@2"
    assert [t["map"] for t in several["request"]["targets"]] == ["hf@1", RECIPE, TEXT]
    served.ask("DELETE", f"{URL}/hf")
    with served.db.connect() as connection:
        contents = (
            connection.execute(sa.select(MAPS.c.map).order_by(MAPS.c.version)).scalars().all()
        )
    assert contents == [content(), TEXT]
    services = served.app.state.services
    for conversion, expected in ((one, [TEXT]), (several["id"], [content(), RECIPE, TEXT])):
        found = conversions.get(served.db, conversion)
        assert found is not None
        document = make_child_request(
            served.db, services.settings, services.roots, found, begun=False
        )
        assert [target["map"] for target in document["targets"]] == expected
    refused = served.ask(
        "POST", "/v1/conversions", json={"source": "data/a", "target": "data/x", "map": "hf"}
    )
    assert refused.json()["field"] == "/map"
    assert refused.json()["detail"] == (
        "the map 'hf' is not stored; store it, or give the map's content, as an object or as text of several lines, or the "
        "name of a recipe"
    )
    with pytest.raises(LayoutError, match=re.escape("the map 'none@1' is not stored")):
        content_then(served.db, MAP, "none@1", 0)


def test_deleted_content_is_dropped_unless_a_conversion_needs_it(
    each: Callable[..., Served],
) -> None:
    served = each()
    put(served, content())
    assert served.ask("DELETE", f"{URL}/hf").status_code == 204
    with served.db.connect() as connection:
        row = connection.execute(sa.select(MAPS)).one()
    assert (row.map, row.bytes, row.deleted) == (None, 0, True)


def test_a_schedule_takes_a_map(served: Served) -> None:
    body = {
        "when": {"directory": "data/run"},
        "targets": [{"target": "data/hf/{step}", "to": "safetensors", "map": "hf"}],
    }
    refused = served.ask("PUT", "/v1/schedules/s", json=body)
    assert refused.json()["field"] == "/targets/0/map"
    assert refused.json()["detail"].startswith("the map 'hf' is not stored")
    put(served, content())
    assert served.ask("PUT", "/v1/schedules/s", json=body).status_code == 201
    [target] = served.ask("GET", "/v1/schedules/s").json()["schedule"]["targets"]
    assert target["map"] == "hf"
