"""The OpenAPI document as a page and for the documentation: operations by tag, and the models that they use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from reshard_server.pages.rendering import TEMPLATES, page

Schema = Mapping[str, Any]

_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
}

ROUTER = APIRouter(include_in_schema=False)


class TypeText(NamedTuple):
    """A part of a type's text; the name of a model is a link to it."""

    text: str
    model: str | None = None


@ROUTER.get("/docs")
def show_docs(request: Request) -> Response:
    """Shows the page; like the document, it needs no token."""
    document = request.app.openapi()
    return page(
        "api_docs.html",
        None,
        info=document["info"],
        tags=tags(document),
        models=sorted(document["components"]["schemas"].items()),
    )


def tags(document: Schema) -> list[tuple[Schema, list[Schema]]]:
    """Each tag with its operations, each with its ``method`` and ``path``, in the order of the document."""
    operations = [
        {**found, "method": method.upper(), "path": path}
        for path, item in document["paths"].items()
        for method, found in item.items()
    ]
    return [(tag, [o for o in operations if tag["name"] in o["tags"]]) for tag in document["tags"]]


def type_of(schema: Schema) -> tuple[TypeText, ...]:
    """The text of a type: ``list of TensorReport or null``."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return (TypeText(name, name),)
    if forms := schema.get("anyOf") or schema.get("oneOf"):
        later = [piece for form in forms[1:] for piece in (TypeText(" or "), *type_of(form))]
        return (*type_of(forms[0]), *later)
    if "enum" in schema:
        return (TypeText(" | ".join(map(json.dumps, schema["enum"]))),)
    if "const" in schema:
        return (TypeText(json.dumps(schema["const"])),)
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return (TypeText("list of "), *type_of(schema["items"]))
    return (TypeText(schema.get("format", kind)),)


def type_of_answer(answer: Schema) -> tuple[TypeText, ...]:
    """The type of an answer's body; nothing without one."""
    media = answer.get("content", {}).values()
    return next((type_of(each["schema"]) for each in media if each.get("schema")), ())


def description_of(schema: Schema, text: str = "") -> str:
    """The description, by default the schema's; the limits, and a default that is not empty."""
    limits = [said.format(schema[key]) for key, said in _LIMITS.items() if key in schema]
    default = schema.get("default")
    if default not in (None, "", [], {}):
        limits.append(f"default {json.dumps(default)}")
    text = (text or schema.get("description", "")).rstrip()
    if not limits:
        return text
    joined = "; ".join(limits)
    return f"{text} ({joined})" if text else joined[:1].upper() + joined[1:]


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a description, each in one line."""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


TEMPLATES.filters |= {
    "type": type_of,
    "description_of": description_of,
    "type_of_answer": type_of_answer,
    "paragraphs": paragraphs,
    "json": lambda value: json.dumps(value, indent=2),
}
