"""The OpenAPI document as records to show: operations by tag, and the models that they name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
class Piece:
    """A part of the text of a type; a name of a model leads to it."""

    text: str
    model: str | None = None


@dataclass(frozen=True)
class Member:
    """A member of a model, or a parameter."""

    name: str
    type: tuple[Piece, ...]
    required: bool
    description: str
    where: str = ""


@dataclass(frozen=True)
class Body:
    """What is sent."""

    type: tuple[Piece, ...]
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Answer:
    """What is answered with a status."""

    status: str
    description: str
    type: tuple[Piece, ...]


@dataclass(frozen=True)
class Operation:
    """A method and a path."""

    id: str
    method: str
    path: str
    summary: str
    paragraphs: tuple[str, ...]
    parameters: tuple[Member, ...]
    body: Body | None
    answers: tuple[Answer, ...]
    needs_token: bool


@dataclass(frozen=True)
class Model:
    """A document that is sent or answered, or a part of one."""

    name: str
    description: str
    members: tuple[Member, ...]


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


def _parameter(found: Schema) -> Member:
    schema = found.get("schema", {})
    description = found.get("description") or schema.get("description", "")
    return Member(
        found["name"],
        type_of(schema),
        found.get("required", False),
        _described(description, schema),
        found["in"],
    )


def _body(found: Schema) -> Body:
    content = found["content"]["application/json"]
    examples = (
        (name, json.dumps(example["value"], indent=2))
        for name, example in content.get("examples", {}).items()
    )
    return Body(type_of(content["schema"]), tuple(examples))


def _answer(status: str, found: Schema) -> Answer:
    kinds = found.get("content", {})
    schemas = [type_of(content["schema"]) for content in kinds.values() if content.get("schema")]
    return Answer(status, found["description"], schemas[0] if schemas else ())


def models(document: Schema) -> Iterator[Model]:
    """Every model, by name."""
    for name, schema in sorted(document["components"]["schemas"].items()):
        required = schema.get("required", ())
        members = (
            Member(
                member,
                type_of(inner),
                member in required,
                _described(inner.get("description", ""), inner),
            )
            for member, inner in schema.get("properties", {}).items()
        )
        yield Model(name, schema.get("description", ""), tuple(members))


def type_of(schema: Schema) -> tuple[Piece, ...]:
    """A type in words: ``list of TensorReport, or null``."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return (Piece(name, name),)
    forms = schema.get("anyOf") or schema.get("oneOf")
    if forms:
        return _joined([type_of(form) for form in forms])
    if "enum" in schema:
        return (Piece(" | ".join(json.dumps(value) for value in schema["enum"])),)
    if "const" in schema:
        return (Piece(json.dumps(schema["const"])),)
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return (Piece("list of "), *type_of(schema["items"]))
    return (Piece(schema.get("format", kind)),)


def _joined(forms: list[tuple[Piece, ...]]) -> tuple[Piece, ...]:
    pieces = list(forms[0])
    for form in forms[1:]:
        pieces += [Piece(" or "), *form]
    return tuple(pieces)


def _described(description: str, schema: Schema) -> str:
    """The description, the limits, and the default where it says something."""
    limits = [text.format(schema[key]) for key, text in _LIMITS.items() if key in schema]
    default = schema.get("default")
    if default not in (None, "", [], {}):
        limits.append(f"default {json.dumps(default)}")
    said = description.rstrip()
    if not limits:
        return said
    told = "; ".join(limits)
    return f"{said} ({told})" if said else told[:1].upper() + told[1:]


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a description, each in one line."""
    return tuple(" ".join(part.split()) for part in text.split("\n\n") if part.strip())
