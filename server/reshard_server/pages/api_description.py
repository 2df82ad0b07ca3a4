"""The OpenAPI document as records for the page: operations by tag, and the models that they use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from reshard_server.pages.rendering import page

Schema = Mapping[str, Any]

_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
}


@dataclass(frozen=True)
class TypeText:
    """A part of a type's text; the name of a model is a link to it."""

    text: str
    model: str | None = None


@dataclass(frozen=True)
class MemberDoc:
    """A member of a model, or a parameter."""

    name: str
    type: tuple[TypeText, ...]
    required: bool
    description: str
    where: str = ""


@dataclass(frozen=True)
class BodyDoc:
    """The body of a request."""

    type: tuple[TypeText, ...]
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ResponseDoc:
    """The response with one status."""

    status: str
    description: str
    type: tuple[TypeText, ...]


@dataclass(frozen=True)
class Operation:
    """A method and a path."""

    id: str
    method: str
    path: str
    summary: str
    paragraphs: tuple[str, ...]
    parameters: tuple[MemberDoc, ...]
    body: BodyDoc | None
    answers: tuple[ResponseDoc, ...]
    needs_token: bool


@dataclass(frozen=True)
class Model:
    """A document of a request or response, or a part of one."""

    name: str
    description: str
    members: tuple[MemberDoc, ...]


def operations(document: Schema, tag: str) -> Iterator[Operation]:
    """The operations of one tag, in the order of the document."""
    for path, item in document["paths"].items():
        for method, found in item.items():
            if tag in found["tags"]:
                yield _operation(method.upper(), path, found)


def _operation(method: str, path: str, found: Schema) -> Operation:
    return Operation(
        id=found["operationId"],
        method=method,
        path=path,
        summary=found["summary"],
        paragraphs=paragraphs(found["description"]),
        parameters=tuple(map(_parameter, found.get("parameters", ()))),
        body=_body(found["requestBody"]) if "requestBody" in found else None,
        answers=tuple(_answer(*each) for each in found["responses"].items()),
        needs_token=bool(found["security"]),
    )


def _parameter(found: Schema) -> MemberDoc:
    schema = found.get("schema", {})
    description = found.get("description") or schema.get("description", "")
    return MemberDoc(
        found["name"],
        type_of(schema),
        found.get("required", False),
        _described(description, schema),
        found["in"],
    )


def _body(found: Schema) -> BodyDoc:
    content = found["content"]["application/json"]
    examples = (
        (name, json.dumps(example["value"], indent=2))
        for name, example in content.get("examples", {}).items()
    )
    return BodyDoc(type_of(content["schema"]), tuple(examples))


def _answer(status: str, found: Schema) -> ResponseDoc:
    kinds = found.get("content", {})
    schemas = [type_of(content["schema"]) for content in kinds.values() if content.get("schema")]
    return ResponseDoc(status, found["description"], schemas[0] if schemas else ())


def models(document: Schema) -> Iterator[Model]:
    """Every model, by name."""
    for name, schema in sorted(document["components"]["schemas"].items()):
        required = schema.get("required", ())
        members = (
            MemberDoc(
                member,
                type_of(inner),
                member in required,
                _described(inner.get("description", ""), inner),
            )
            for member, inner in schema.get("properties", {}).items()
        )
        yield Model(name, schema.get("description", ""), tuple(members))


def type_of(schema: Schema) -> tuple[TypeText, ...]:
    """The text of a type: ``list of TensorReport or null``."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return (TypeText(name, name),)
    forms = schema.get("anyOf") or schema.get("oneOf")
    if forms:
        return _joined([type_of(form) for form in forms])
    if "enum" in schema:
        return (TypeText(" | ".join(json.dumps(value) for value in schema["enum"])),)
    if "const" in schema:
        return (TypeText(json.dumps(schema["const"])),)
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return (TypeText("list of "), *type_of(schema["items"]))
    return (TypeText(schema.get("format", kind)),)


def _joined(forms: list[tuple[TypeText, ...]]) -> tuple[TypeText, ...]:
    pieces = list(forms[0])
    for form in forms[1:]:
        pieces += [TypeText(" or "), *form]
    return tuple(pieces)


def _described(description: str, schema: Schema) -> str:
    """The description, the limits, and a default that is not empty."""
    limits = [text.format(schema[key]) for key, text in _LIMITS.items() if key in schema]
    default = schema.get("default")
    if default not in (None, "", [], {}):
        limits.append(f"default {json.dumps(default)}")
    text = description.rstrip()
    if not limits:
        return text
    joined = "; ".join(limits)
    return f"{text} ({joined})" if text else joined[:1].upper() + joined[1:]


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a description, each in one line."""
    return tuple(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


ROUTER = APIRouter(include_in_schema=False)


@ROUTER.get("/docs")
def show_docs(request: Request) -> Response:
    """Shows the page; like the document, it needs no token."""
    document = request.app.openapi()
    return page(
        "api_docs.html",
        None,
        about=paragraphs(document["info"]["description"]),
        version=document["info"]["version"],
        tags=[
            (tag["name"], tag["description"], list(operations(document, tag["name"])))
            for tag in document["tags"]
        ],
        models=list(models(document)),
    )
