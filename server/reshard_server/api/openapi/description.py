"""The OpenAPI document: every operation with every problem that it may answer, and the models of the library's documents.

Problems of all operations are added here; a route names its own by ``problems``.

The server passes the library's documents on without validation, since a list may have 30,000 tensors. The models only describe
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import models_json_schema

from reshard import (
    CastStats,
    CheckpointInfo,
    ConversionPlan,
    ConversionReport,
    DeltaReport,
    DeltaTensor,
    FileVerdict,
    Fingerprint,
    Identification,
    IdentityReport,
    IdentityVerdict,
    Item,
    LayoutPreview,
    LeafDiff,
    MapSummary,
    MultiConversionPlan,
    PlannedRequests,
    ReceiptVerdict,
    RequestReport,
    Requests,
    TensorIdentity,
    TensorInfo,
    TensorPreview,
    TensorReport,
    TensorVerdict,
    Verification,
    VersionInfo,
)
from reshard.answers.record import json_of
from reshard.inspection.checkpoint_info import LeafInfo
from reshard.verification.reports import AppliedRules
from reshard_server.api.answers import NAME, PARAMETER, answer_schema
from reshard_server.errors.problems import (
    FORBIDDEN,
    HEADERS_TOO_LARGE,
    INTERNAL,
    INVALID,
    MALFORMED,
    MEDIA_TYPE,
    NOT_FOUND,
    PRECONDITION,
    TOO_LARGE,
    TOO_MANY,
    TOO_SLOW,
    UNAUTHENTICATED,
    UNSUPPORTED,
    Kind,
)
from reshard_server.schemas.base import MEANT, MODEL_MARK, Problem, RootedPath, one

Responses = dict[int | str, dict[str, Any]]

ABOUT = """Converts sharded checkpoints from one device mesh to another: bit-exact, in bounded memory, on any CPU host.

Every operation except `/livez`, `/readyz` and this description needs a bearer token. A refused request gets a problem
document (RFC 9457) that says what was expected, what was found, and what to do. Every answer has the header
`X-Request-Id`; send your own id to find a request in the server's log.
"""

_IF_MATCH = {
    "name": "if-match",
    "in": "header",
    "description": "Answer only if it has one of these ETags; else 412.",
    "required": False,
    "schema": {"type": "string"},
}
"""`middleware.http_protocol` compares it for every route whose answer has an ETag."""

_PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_ALWAYS = (MALFORMED, TOO_SLOW, TOO_LARGE, HEADERS_TOO_LARGE, INTERNAL)
_WITH_TOKEN = (UNAUTHENTICATED, FORBIDDEN, TOO_MANY)
_UNUSED = ("HTTPValidationError", "ValidationError")


def problems(*kinds: Kind) -> Responses:
    """The problems that a route may answer, for its ``responses``."""
    by_status: dict[int | str, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {status: _response(same) for status, same in by_status.items()}


def describe(app: FastAPI) -> None:
    """Lets the application serve the complete description."""

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            document = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.description,
                description=ABOUT,
                routes=app.routes,
                license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
                servers=[{"url": "/", "description": "This server."}],
                tags=[{"name": name, "description": text} for name, text in TAGS.items()],
            )
            app.openapi_schema = _completed(document)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI documents it


TAGS = {
    "conversions": "Start, watch, cancel and retry conversions.",
    "deltas": "Differences between two versions of weights, published for serving.",
    "plans": "The work and the cost of a conversion; no data are moved.",
    "checkpoints": "Checkpoints below the storage roots.",
    "layouts": "Named layouts; every version is kept.",
    "maps": "Named maps from source tensors to target tensors; every version is kept.",
    "views": "Files that are made of a source as they are read; every version of the rules is kept.",
    "schedules": "Conversions at given times, or of each new step.",
    "tensors": "Slices of tensors as bytes.",
    "operation": "Health and metrics of the server.",
}


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in _UNUSED:
        schemas.pop(name, None)
    model = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(model.pop("$defs", {}))
    schemas["Problem"] = model
    _, models = models_json_schema(
        [(model, "serialization") for model in MARKED.values()],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(models["$defs"])
    _refer(document)
    used = {tag for _, op in _operations(document) for tag in op.get("tags", ())}
    document["tags"] = [tag for tag in document["tags"] if tag["name"] in used]
    for item in document["paths"].values():
        for method in {"get", "head"} & item.keys():
            answers = item[method]["responses"]
            if "ETag" in answers["200"].get("headers", {}):
                item[method].setdefault("parameters", []).append(_IF_MATCH)
                answers.update({str(k): v for k, v in problems(PRECONDITION).items()})
    for path, operation in _operations(document):
        _complete(path, operation)
    _name_bodies(document, schemas)
    _let_members_be_absent(document, schemas)
    return document


def _refer(part: Any) -> None:
    """Replaces each ``MODEL_MARK`` in a part of the document by a reference to its model."""
    if isinstance(part, dict):
        name = part.pop(MODEL_MARK, None)
        if name is not None:
            part["$ref"] = f"#/components/schemas/{name}"
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, dict | list):
            _refer(inner)


def _name_bodies(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Gives each body without a name one, after its operation: generators of clients would call it Body, Body1, ..."""
    for _, operation in _operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "$ref" not in content.get("schema", {"$ref": ""}):
            name = operation["operationId"].title().replace("_", "") + "Request"
            schemas[name] = {**content["schema"], "title": name}
            content["schema"] = {"$ref": f"#/components/schemas/{name}"}


def _let_members_be_absent(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Makes no member of an answer required that ``fields`` may leave out, and names none ``cast`` (see ``base.shown_request``)."""
    operations = [operation for path, operation in _operations(document) if path.startswith("/v1/")]
    sent = _named([operation.get("requestBody") for operation in operations], schemas)
    names = _named([answer_schema(operation) for operation in operations], schemas) - sent
    for name in names:
        schemas[name].pop("required", None)
    hidden = set[str]()
    # After every "required" is gone, and in one order, so that each process makes the same document.
    for name in sorted(names):
        schema = schemas[name]
        if "cast" in (members := schema.get("properties", {})):
            exact = {**members, "cast": _inlined(members["cast"], schemas)}
            schema[MEANT] = {**schema, "properties": exact}
            schema["properties"] = {k: v for k, v in members.items() if k != "cast"}
            hidden |= _named(members["cast"], schemas)
    for name in hidden - _named(document["paths"], schemas):
        del schemas[name]


def _inlined(part: Any, schemas: dict[str, Any]) -> Any:
    """A part of the document with the schemas themselves in place of references to them."""
    if isinstance(part, dict) and "$ref" in part:
        return _inlined(schemas[part["$ref"].rpartition("/")[2]], schemas)
    if isinstance(part, dict):
        return {name: _inlined(inner, schemas) for name, inner in part.items()}
    return [_inlined(inner, schemas) for inner in part] if isinstance(part, list) else part


def _named(part: Any, schemas: dict[str, Any]) -> set[str]:
    """The names of all schemas that a part of the document refers to, directly or not; without that of problems."""
    found, ahead = set[str](), [part]
    while ahead:
        part = ahead.pop()
        name = part.get("$ref", "").rpartition("/")[2] if isinstance(part, dict) else ""
        if name and name not in found | {"Problem"}:
            found.add(name)
            ahead.append(schemas[name])
        ahead += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return found


def _operations(document: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for operation in item.values():
            yield path, operation


def _complete(path: str, operation: dict[str, Any]) -> None:
    operation.setdefault("security", [])
    parameters = operation.get("parameters", [])
    is_masked = path.startswith("/v1/") and answer_schema(operation) is not None
    if is_masked and not any(parameter["name"] == NAME for parameter in parameters):
        operation["parameters"] = [*parameters, PARAMETER]
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]
    for status, response in problems(*_common(path, operation)).items():
        responses.setdefault(str(status), response)
    operation["responses"] = dict(sorted(responses.items()))
    for response in operation["responses"].values():
        response.setdefault("headers", {})["X-Request-Id"] = {
            "description": "Id of the request in the server's log.",
            "schema": {"type": "string"},
        }


def _common(path: str, operation: dict[str, Any]) -> list[Kind]:
    kinds = list(_ALWAYS)
    if operation.get("security"):
        kinds += _WITH_TOKEN
    if path.startswith("/v1/"):
        kinds.append(UNSUPPORTED)
    if operation.get("parameters") or operation.get("requestBody"):
        kinds.append(INVALID)
    if "{" in path or operation.get("requestBody"):
        kinds.append(NOT_FOUND)
    return kinds


def _response(kinds: list[Kind]) -> dict[str, Any]:
    examples = {
        kind.slug: {
            "summary": kind.title,
            "value": {
                "type": kind.type,
                "title": kind.title,
                "status": kind.status,
                "detail": f"{kind.title}; the detail says where, what was expected, and what to do",
            },
        }
        for kind in kinds
    }
    content = {MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA, "examples": examples}}
    return {"description": "; ".join(f"{k.title} (`{k.type}`)" for k in kinds), "content": content}


TITLES: dict[type, str] = {
    AppliedRules: "VerifiedRules",
    CastStats: "CastReport",
    CheckpointInfo: "Inspection",
    ConversionPlan: "PlanAnswer",
    ConversionReport: "TargetReport",
    FileVerdict: "VerifiedFile",
    Fingerprint: "FingerprintAnswer",
    Identification: "IdentityAnswer",
    IdentityReport: "IdentityOutcome",
    IdentityVerdict: "VerifiedIdentity",
    Item: "ItemReport",
    LayoutPreview: "LayoutAnswer",
    LeafDiff: "VerifiedLeaf",
    LeafInfo: "LeafReport",
    MapSummary: "MapAnswer",
    MultiConversionPlan: "MultiPlanAnswer",
    ReceiptVerdict: "VerifiedReceipt",
    RequestReport: "RequestComparison",
    Requests: "BucketRequests",
    TensorIdentity: "IdentifiedTensor",
    TensorInfo: "InspectedTensor",
    TensorPreview: "LaidOutTensor",
    TensorVerdict: "VerifiedTensor",
    Verification: "VerificationAnswer",
}
"""The names of records in the OpenAPI document where they are not those of the library."""

WIDER: dict[tuple[type, str], Any] = {
    (CastStats, "largest_relative_error"): float | Literal["inf", "nan"],  # JSON has no infinity
    (Item, "handler"): str | None,
}
"""The types of members in JSON where they are not those of the library."""


class Versions(Struct, frozen=True):
    """The versions of weights in a folder, by their numbers."""

    uri: str
    versions: tuple[VersionInfo, ...]


Part = Callable[[type[Struct]], Any]
"""Gives the type of a document that is a part of another one."""


class LibraryDocument(BaseModel):
    """A part of an answer; it may have further members."""

    model_config = ConfigDict(frozen=True, extra="allow")


class CommandAnswer(LibraryDocument):
    """The JSON object of a command (docs/reference/json-output.md); it may have further members."""

    warnings: list[str] = Field(default_factory=list)


@cache
def model_of(document: type[Struct]) -> type[BaseModel]:
    """The model of a document, with its name, text, members and those of its parts."""
    command = "convert" if document is ConversionReport else None
    more = {"tensors": _tensors_or_count()} if document is ConversionReport else None
    return _model(document, LibraryDocument, command, model_of, {}, more)


def _tensors_or_count() -> dict[str, Any]:
    """The tensors of a report, in whose place an event may have their number."""
    told = Field(description="Left out of events unless fields includes it; see result_url.")
    counted = Field(description="In place of tensors, if these are left out.")
    tensors: Any = _typed(tuple[TensorReport, ...], model_of)
    return {
        "tensors": (Annotated[tensors | None, told], None),
        "tensor_count": (Annotated[int | None, counted], None),
    }


def _marked(document: type[Struct]) -> Any:
    """The mark of a document's model, which is described beside the models that FastAPI finds."""
    model = MARKED[model_of(document).__name__] = model_of(document)
    return Annotated[dict[str, Any], one(model.__name__)]


def answer_of(document: type[Struct], command: str, **types: Any) -> type[BaseModel]:
    """The model of a command's object over HTTP.

    Args:
        types: of members that differ from the library's, such as paths below a root.
    """
    return _model(document, CommandAnswer, command, _marked, types)


def _model(
    document: type[Struct],
    base: type[BaseModel],
    command: str | None,
    part: Part,
    types: dict[str, Any],
    more: dict[str, dict[str, Any]] | None = None,
) -> type[BaseModel]:
    members: dict[str, Any] = {} if command is None else {"command": (Literal[command], ...)}
    for member in _members(document):
        if member.key in base.model_fields:
            continue
        # A member such as "copy" may not have the name of a method.
        name = f"{member.name}_" if hasattr(base, member.name) else member.name
        said = Field() if name == member.key else Field(alias=member.key)
        if more and member.name in more:
            members |= more[member.name]
        elif member.name in types:
            told = [_told(more) for more in get_args(member.kind) if isinstance(more, Meta)]
            default = ... if member.is_set_later else member.default
            members[name] = (Annotated[(types[member.name], *told, said)], default)
        else:
            members[name] = (Annotated[_typed(member.kind, part), said], member.default)
    title = TITLES.get(document, document.__name__.removesuffix("Document"))
    said, _, _ = (document.__doc__ or "").partition("\n\n")
    return create_model(title, __base__=base, __module__=__name__, __doc__=said, **members)


class _Member(NamedTuple):
    """A member of a record's JSON; ``is_set_later``: the command or the server sets it, and the call that returns the record does not."""

    name: str
    key: str
    kind: Any
    default: Any
    is_set_later: bool


def _members(document: type[Struct]) -> Iterator[_Member]:
    """The members of a record's JSON that answers by HTTP have."""
    form, known = json_of(document), {field.name: field for field in fields(document)}
    hints = get_type_hints(document, include_extras=True)
    for name in form.members or known:
        if name in form.only_commands:
            continue
        if name not in known:
            getter = getattr(document, name).fget
            yield _Member(
                name, name, get_type_hints(getter, include_extras=True)["return"], ..., False
            )
            continue
        field, kind = known[name], WIDER.get((document, name), hints[name])
        is_set_later = field.default is UNSET
        default: Any = None if is_set_later else _default(field) if name in form.later else ...
        if name in form.listed:
            kind = tuple.__class_getitem__((get_args(kind)[1], ...))
        if name in form.left_out:
            inner, *told = get_args(kind) if get_origin(kind) is Annotated else (kind,)
            kind, default = Annotated[(inner | None, *told)] if told else inner | None, None
        yield _Member(name, field.encode_name, kind, default, is_set_later)


def _typed(kind: Any, part: Part) -> Any:
    """The type of a member with models in place of documents, and null where a member may be left out."""
    if kind is UnsetType:
        return None
    if isinstance(kind, type) and issubclass(kind, Struct):
        return part(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is None or origin is Literal:
        return kind
    if origin is Annotated:
        return Annotated[(_typed(inner[0], part), *map(_told, inner[1:]))]
    typed = tuple(_typed(each, part) for each in inner)
    return Union[typed] if origin in (Union, UnionType) else origin[typed]  # noqa: UP007  (made at run time)


def _told(meta: Meta) -> Any:
    return Field(description=meta.description)


def _default(field: FieldInfo) -> Any:
    """The value of a member that the answer of an older server lacks."""
    if field.default_factory is not NODEFAULT:
        return Field(default_factory=field.default_factory)
    return Field(default_factory=list) if field.default == () else field.default


MARKED = {
    "TargetReport": model_of(ConversionReport),
    "DeltaReport": _model(
        DeltaReport,
        LibraryDocument,
        "delta",
        model_of,
        {"tensors": list[model_of(DeltaTensor)]},  # type: ignore[misc]  # a model that is made at run time
    ),
}
"""The models that schemas name by ``MODEL_MARK``, by their names."""

INSPECTION = answer_of(CheckpointInfo, "inspect", uri=RootedPath)
VERIFICATION = answer_of(Verification, "verify", a=RootedPath, b=RootedPath | None)
FINGERPRINT = answer_of(Fingerprint, "fingerprint", uri=RootedPath)
IDENTITY = answer_of(Identification, "identify", uri=RootedPath)
LAYOUT = answer_of(LayoutPreview, "layout", file=str, source=RootedPath)
VERSIONS = answer_of(Versions, "inspect", uri=RootedPath)
_REQUESTS: Any = _typed(PlannedRequests | None, model_of)
PLAN = answer_of(ConversionPlan, "plan", source=RootedPath, target=RootedPath, requests=_REQUESTS)
MULTI_PLAN = answer_of(
    MultiConversionPlan,
    "plan",
    source=RootedPath,
    plans=list[PLAN],  # type: ignore[valid-type]  # a model that is made at run time
    requests=_REQUESTS,
)
