"""The reference of the HTTP API, made of the OpenAPI document as the server's own page ``/docs`` is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reshard_server.app import create_app
from reshard_server.pages.api_description import (
    TypeText,
    description_of,
    paragraphs,
    tags,
    type_of,
    type_of_answer,
)
from reshard_server.settings import Settings

from docs.site.prose import prose

Schema = Mapping[str, Any]


def openapi() -> dict[str, Any]:
    """The document that ``/openapi.json`` answers with."""
    return create_app(Settings()).openapi()


def openapi_file() -> bytes:
    """The document as a file of the site."""
    return json.dumps(openapi(), indent=1).encode()


def http_api() -> str:
    """Routes by tag, with parameters, bodies and answers; then the models that they name."""
    document = openapi()
    tagged, models = tags(document), sorted(document["components"]["schemas"].items())
    parts = [prose(document["info"]["description"]), _index(tagged)]
    for tag, inside in tagged:
        parts += [f"## {tag['name']} {{#{tag['name']}}}", prose(tag["description"])]
        parts += map(_operation, inside)
    return "\n\n".join([*parts, "## Models {#models}", *(_model(*each) for each in models)])


def _index(tagged: Iterable[tuple[Schema, Sequence[Schema]]]) -> str:
    rows = (
        f"| [`{each['method']} {each['path']}`](#{each['operationId']}) | {prose(each['summary'])} |"
        for _, inside in tagged
        for each in inside
    )
    return "\n".join(["| route | what it does |", "|---|---|", *rows])


def _operation(each: Schema) -> str:
    parts = [f"### `{each['method']} {each['path']}` {{#{each['operationId']}}}"]
    parts += map(prose, paragraphs(each["description"]))
    if not each["security"]:
        parts.append("Needs no token.")
    if given := each.get("parameters"):
        rows = (
            _member(
                f"`{one['name']}` ({one['in']})",
                one.get("schema", {}),
                one.get("required", False),
                one.get("description", ""),
            )
            for one in given
        )
        parts.append(_members("parameter", rows))
    if "requestBody" in each:
        content = each["requestBody"]["content"]["application/json"]
        parts.append(f"**Body**: {_type(type_of(content['schema']))}")
        for example in content.get("examples", {}).values():
            parts.append(f"~~~json\n{json.dumps(example['value'], indent=2)}\n~~~")
    answers = (
        f"| {status} | {_cell(answer['description'])} | {_type(type_of_answer(answer))} |"
        for status, answer in each["responses"].items()
    )
    parts.append("\n".join(["| status | when | body |", "|---|---|---|", *answers]))
    return "\n\n".join(parts)


def _model(name: str, model: Schema) -> str:
    parts = [f"### {name} {{#{name}}}", prose(model.get("description", ""))]
    if members := model.get("properties"):
        required = model.get("required", ())
        rows = (_member(f"`{key}`", inner, key in required) for key, inner in members.items())
        parts.append(_members("member", rows))
    return "\n\n".join(filter(None, parts))


def _members(first: str, rows: Iterable[str]) -> str:
    return "\n".join([f"| {first} | type | required | what it is |", "|---|---|---|---|", *rows])


def _member(name: str, schema: Schema, required: bool, description: str = "") -> str:
    needed = "yes" if required else ""
    return f"| {name} | {_type(type_of(schema))} | {needed} | {_cell(description_of(schema, description))} |"


def _cell(text: str) -> str:
    return prose(" ".join(text.split()))


def _type(pieces: Iterable[TypeText]) -> str:
    return "".join(_pieces(pieces))


def _pieces(pieces: Iterable[TypeText]) -> Iterator[str]:
    for piece in pieces:
        text = prose(piece.text)
        yield f"[{text}](#{piece.model})" if piece.model else text
