"""The API's description as a page: whole, for everybody, and with nothing from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest
from reshard_server.pages.api_description import TypeText, type_of
from reshard_server.pages.rendering import prose

from tests.server.served import Served


@pytest.fixture
def html(served: Served) -> str:
    answer = served.ask("GET", "/docs", who=None, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Security-Policy"].startswith(
        "default-src 'none'; script-src 'self'"
    )
    return answer.text


def test_it_tells_every_operation_and_every_model(html: str, served: Served) -> None:
    document = served.app.openapi()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert f'id="{operation["operationId"]}"><code>{method.upper()} {path}</code>' in html
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in html
    for name, schema in document["components"]["schemas"].items():
        assert f'<h3 id="{name}">{name}</h3>' in html
        for member in schema.get("properties", {}):
            assert f"<code>{member}</code>" in html


def test_it_loads_nothing_from_elsewhere_and_leads_nowhere_in_vain(html: str) -> None:
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", html)
    scripts = re.findall(r"<script[^>]*>", html)
    assert [re.sub("[?]v=[0-9a-f]+", "", script) for script in scripts] == [
        '<script src="/static/page.js" defer>'
    ]
    assert not re.findall(r"<[^>]* (?:style|on[a-z]+)=", html)
    anchors = set(re.findall(r' id="([^"]+)"', html))
    assert len(anchors) == len(re.findall(r' id="', html))
    assert set(re.findall(r' href="#([^"]+)"', html)) <= anchors


def test_it_is_linked(served: Served) -> None:
    missing = served.ask("GET", "/v1/nothing").json()
    assert missing["detail"].endswith("the API's description is at /docs")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "array", "items": {"$ref": "#/components/schemas/Leaf"}}, "list of Leaf"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"type": "string", "enum": ["a", "b"]}, '"a" | "b"'),
        ({"const": "plan", "type": "string"}, '"plan"'),
        ({"type": "string", "format": "date-time"}, "date-time"),
        ({}, "any"),
    ],
)
def test_types_in_words(schema: dict[str, Any], text: str) -> None:
    assert "".join(piece.text for piece in type_of(schema)) == text


def test_names_of_models_are_links_and_text_is_escaped() -> None:
    assert type_of({"$ref": "#/components/schemas/Leaf"}) == (TypeText("Leaf", "Leaf"),)
    assert prose("a `<b>` and ``c`` <i>") == "a <code>&lt;b&gt;</code> and <code>c</code> &lt;i&gt;"
