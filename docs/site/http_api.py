"""The reference of the HTTP API, made of the OpenAPI document as the server's own page ``/docs`` is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from reshard_server.app import create_app
from reshard_server.pages.api_description import (
    MemberDoc,
    Model,
    Operation,
    TypeText,
    models,
    operations,
)
from reshard_server.settings import Settings

from docs.site.prose import prose


def openapi() -> dict[str, Any]:
    """The document that ``/openapi.json`` answers with."""
    return create_app(Settings()).openapi()


def openapi_file() -> bytes:
    """The document as a file of the site."""
    return json.dumps(openapi(), indent=1).encode()


def http_api() -> str:
    """Routes by tag, with parameters, bodies and answers; then the models that they name."""
    document = openapi()
    tags = [(tag, list(operations(document, tag["name"]))) for tag in document["tags"]]
    parts = [prose(document["info"]["description"]), _index(tags)]
    for tag, inside in tags:
        parts += [f"## {tag['name']} {{#{tag['name']}}}", prose(tag["description"])]
        parts += map(_operation, inside)
    return "\n\n".join([*parts, "## Models {#models}", *map(_model, models(document))])


def _index(tags: Iterable[tuple[dict[str, Any], Sequence[Operation]]]) -> str:
    rows = (
        f"| [`{each.method} {each.path}`](#{each.id}) | {prose(each.summary)} |"
        for _, inside in tags
        for each in inside
    )
    return "\n".join(["| route | what it does |", "|---|---|", *rows])


def _operation(each: Operation) -> str:
    parts = [f"### `{each.method} {each.path}` {{#{each.id}}}", *map(prose, each.paragraphs)]
    if not each.needs_token:
        parts.append("Needs no token.")
    if each.parameters:
        parts.append(_members("parameter", each.parameters))
    if each.body:
        parts.append(f"**Body**: {_type(each.body.type)}")
        parts += (f"~~~json\n{text}\n~~~" for _, text in each.body.examples)
    rows = (f"| {a.status} | {_cell(a.description)} | {_type(a.type)} |" for a in each.answers)
    parts.append("\n".join(["| status | when | body |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _model(model: Model) -> str:
    parts = [f"### {model.name} {{#{model.name}}}", prose(model.description)]
    if model.members:
        parts.append(_members("member", model.members))
    return "\n\n".join(filter(None, parts))


def _members(first: str, members: Iterable[MemberDoc]) -> str:
    return "\n".join(
        [f"| {first} | type | required | what it is |", "|---|---|---|---|", *map(_member, members)]
    )


def _member(each: MemberDoc) -> str:
    where = f" ({each.where})" if each.where else ""
    needed = "yes" if each.required else ""
    return f"| `{each.name}`{where} | {_type(each.type)} | {needed} | {_cell(each.description)} |"


def _cell(text: str) -> str:
    return prose(" ".join(text.split()))


def _type(pieces: Iterable[TypeText]) -> str:
    return "".join(_pieces(pieces))


def _pieces(pieces: Iterable[TypeText]) -> Iterator[str]:
    for piece in pieces:
        text = prose(piece.text)
        yield f"[{text}](#{piece.model})" if piece.model else text
