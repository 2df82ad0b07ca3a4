"""The library's documents (``reshard.documents``) as models of pydantic, for the OpenAPI document.

The server passes these documents on without validation, since a list may have 30,000 tensors. The models only describe them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, ConfigDict, Field, create_model

from reshard import DeltaReport, DeltaTensor, VersionInfo
from reshard.documents.checkpoints import (
    FingerprintAnswer,
    IdentityAnswer,
    Inspection,
    LayoutAnswer,
)
from reshard.documents.comparisons import VerificationAnswer
from reshard.documents.plans import MultiPlanAnswer, PlanAnswer
from reshard.documents.reports import TargetReport
from reshard.documents.shared import ONLY_COMMANDS, PlannedRequests
from reshard_server.schemas.base import RootedPath, one


class Versions(Struct, frozen=True):
    """The versions of weights in a folder, by their numbers."""

    uri: str
    versions: tuple[VersionInfo, ...]


Part = Callable[[type[Struct]], Any]
"""What stands for a document within another one."""


class LibraryDocument(BaseModel):
    """A part of an answer; it may have further members."""

    model_config = ConfigDict(frozen=True, extra="allow")


class CommandAnswer(LibraryDocument):
    """The JSON object of a command (docs/reference/json-output.md); it may have further members."""

    warnings: list[str] = Field(default_factory=list)


@cache
def model_of(document: type[Struct]) -> type[BaseModel]:
    """The model of a document, with its name, text, members and those of its parts."""
    command = "convert" if document is TargetReport else None
    return _model(document, LibraryDocument, command, model_of, {})


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
) -> type[BaseModel]:
    hints = get_type_hints(document, include_extras=True)
    members: dict[str, Any] = {} if command is None else {"command": (Literal[command], ...)}
    for field in fields(document):
        kind = hints[field.name]
        if field.name in base.model_fields or ONLY_COMMANDS in get_args(kind):
            continue
        # A member such as "copy" may not have the name of a method.
        name = f"{field.name}_" if hasattr(base, field.name) else field.name
        said = Field() if name == field.encode_name else Field(alias=field.encode_name)
        if field.name in types:
            told = [_told(more) for more in get_args(kind) if isinstance(more, Meta)]
            default = ... if field.default is UNSET else _default(field)
            members[name] = (Annotated[(types[field.name], *told, said)], default)
        else:
            members[name] = (Annotated[_typed(kind, part), said], _default(field))
    title = document.__name__.removesuffix("Document")
    said, _, _ = (document.__doc__ or "").partition("\n\n")
    return create_model(title, __base__=base, __module__=__name__, __doc__=said, **members)


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
    """What a member is if an answer lacks it; an older server does not know the members that have one."""
    if field.default_factory is not NODEFAULT:
        return Field(default_factory=field.default_factory)
    if field.default is NODEFAULT:
        return ...
    if field.default == ():
        return Field(default_factory=list)
    return None if field.default is UNSET else field.default


MARKED = {
    "TargetReport": model_of(TargetReport),
    "DeltaReport": _model(
        DeltaReport,
        LibraryDocument,
        "delta",
        model_of,
        {"tensors": list[model_of(DeltaTensor)]},  # type: ignore[misc]  # a model that is made at run time
    ),
}
"""The models that schemas name by ``MODEL_MARK``, by their names."""

INSPECTION = answer_of(Inspection, "inspect", uri=RootedPath)
VERIFICATION = answer_of(VerificationAnswer, "verify", a=RootedPath, b=RootedPath | None)
FINGERPRINT = answer_of(FingerprintAnswer, "fingerprint", uri=RootedPath)
IDENTITY = answer_of(IdentityAnswer, "identify", uri=RootedPath)
LAYOUT = answer_of(LayoutAnswer, "layout", file=str, source=RootedPath)
VERSIONS = answer_of(Versions, "inspect", uri=RootedPath)
_REQUESTS: Any = _typed(PlannedRequests | None, model_of)
PLAN = answer_of(PlanAnswer, "plan", source=RootedPath, target=RootedPath, requests=_REQUESTS)
MULTI_PLAN = answer_of(
    MultiPlanAnswer,
    "plan",
    source=RootedPath,
    plans=list[PLAN],  # type: ignore[valid-type]  # a model that is made at run time
    requests=_REQUESTS,
)
